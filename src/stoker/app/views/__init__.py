"""Show: data of all screens, for text, JSON and the page."""
