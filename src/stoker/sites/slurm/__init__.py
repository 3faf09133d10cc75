"""The site that is a cluster under Slurm."""
