"""Change: requests about jobs that are in the queue."""
