"""The site that is this server."""
