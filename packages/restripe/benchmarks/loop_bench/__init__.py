"""restripe as its consumers call it, on the CPU over gloo: part of `nox -s bench`."""
