"""What lies behind `stoker status`, `history` and `gpus`: plain data, and how it is put into text."""
