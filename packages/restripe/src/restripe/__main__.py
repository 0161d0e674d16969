"""The command line as `python -m restripe`."""

from restripe.cli import app

app(prog_name="restripe")
