"""Execution: from a plan to launches on a device."""
