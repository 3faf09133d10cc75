"""The older tools' commands, one file each; thin doors on the same parts as everything else."""
