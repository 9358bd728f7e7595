"""What is on disk: checkpoints as mapped tensors, their formats and their names."""
