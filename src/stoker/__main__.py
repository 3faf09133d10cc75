"""`python -m stoker` is the console script."""

from stoker.cli import main

main()
