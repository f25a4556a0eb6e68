"""The commands of `python -m experiment_kit`, a file each."""
