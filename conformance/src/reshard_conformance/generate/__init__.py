"""Hypothesis strategies that draw cases, and the classes of layouts that they have to cover."""
