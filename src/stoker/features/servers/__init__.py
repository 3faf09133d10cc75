"""Several servers, each with a complete queue of its own, used through ssh."""
