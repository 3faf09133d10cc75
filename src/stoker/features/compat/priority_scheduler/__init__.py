"""The older tool priority_scheduler: the tasks of a CSV file, profiled and then trained together."""
