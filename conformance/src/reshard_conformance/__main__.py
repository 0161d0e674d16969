"""`python -m reshard_conformance`: the same as the command `reshard-conformance`."""

from reshard_conformance.cli import app

if __name__ == "__main__":
    app(prog_name="reshard-conformance")
