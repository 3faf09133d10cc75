#!/bin/bash
#SBATCH --job-name=folds
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --array=0-2
python3 eval.py --fold "$SLURM_ARRAY_TASK_ID"
