"""The web page: an HTTP server on the loopback interface that shows one user's queue."""
