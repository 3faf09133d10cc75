"""What lies behind `stoker run`: its jobs, its display, its summary."""
