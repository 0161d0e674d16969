"""Layouts: what each rank owns of a tensor."""
