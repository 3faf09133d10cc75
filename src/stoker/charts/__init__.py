"""Charts as SVG: for papers, issues and reports."""
