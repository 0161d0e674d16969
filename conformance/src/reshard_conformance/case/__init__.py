"""Test cases as data: their steps, files, geometry, and real models' parameters."""
