"""Mutants: broken implementations that the suite must fail, and the plain implementation that they derive from."""
