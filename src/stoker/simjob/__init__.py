"""A small job for simulated GPUs, for demonstrations and tests: `python -m stoker.simjob --memory 6G`."""
