"""Broken implementations that the suite must find, and the plain one that they break."""
