"""Clusters under Slurm: a site for engines, pilots, private clusters, and the commands for them."""
