"""Verdicts on a run: its result, the index of requirements, and waivers."""
