"""Text output; the data comes from stoker.app.views."""
