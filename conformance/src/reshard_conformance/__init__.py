"""Certifies an implementation of reshard: worlds to run in, cases, an oracle, and a suite with reports."""

__all__ = ["SPECIFICATION", "__version__"]

__version__ = "0.1.0"

#: Version of the specification (docs/spec) that this release checks.
SPECIFICATION = "0.1"
