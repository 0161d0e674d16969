"""The inputs of a step on each rank, and the verdict on its results."""
