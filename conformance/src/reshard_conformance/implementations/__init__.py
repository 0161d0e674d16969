"""Adapters of known implementations; loaded by name only, for each imports its own target."""
