"""What lies behind `stoker submit`: from what was typed to jobs in the queue."""
