"""What `stoker simulate` consists of: the replays, their report, and two ways to draw it."""
