"""Runs of the suite: the plan of a run, its worker processes, and the replay of case files."""
