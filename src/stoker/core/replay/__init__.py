"""A virtual machine that lives through a trace of jobs, with every decision made by the very plan of the product."""
