"""The process of a sweep that chooses points, reads values, and stops trials early. It is a job of the queue."""
