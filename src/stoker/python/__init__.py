"""The doors for Python programs: functions and commands into the queue and their results back; words inside a job."""
