"""Lets `python -m stoker.simjob` run the job."""

import sys

from stoker.simjob.program import main

if __name__ == "__main__":
    sys.exit(main())
