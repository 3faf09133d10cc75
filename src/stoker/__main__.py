"""`python -m stoker` is the console script."""

from stoker.cli.main import main

main()
