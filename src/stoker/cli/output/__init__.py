"""What lies behind `stoker logs`: files of output, and how they are shown."""
