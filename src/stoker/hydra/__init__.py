"""Hydra's multiruns through the queue: `hydra/launcher=stoker`, which Hydra finds in hydra_plugins.stoker_launcher."""
