"""The older tool priority_scheduler: tasks of a CSV file, profiled one by one and then packed by their memory."""
