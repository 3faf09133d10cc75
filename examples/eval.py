"""A stand-in for an evaluation script: one fold of a cross-validation."""

import argparse

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--fold", type=int, default=0)
fold = options.parse_args().fold
print(f"fold {fold} accuracy={0.9 + fold / 100:.2f}")
