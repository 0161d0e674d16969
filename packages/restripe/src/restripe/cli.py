"""The command line; needs the extra `cli`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from restripe.bench.rows import Row, rows
from restripe.bench.table import WIDTH, table
from restripe.bench.world import BenchError, gpus, restripes, results

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Exact resharding of distributed tensors.")


@app.callback()
def main() -> None:
    """Exact resharding of distributed tensors between layouts."""


@app.command()
def bench(
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
    limit: Annotated[float, typer.Option(help="Seconds after which the run is ended.")] = 240.0,
) -> None:
    """Time restripe on the GPUs of this host beside the same sends and receives issued by hand."""
    console = Console(width=WIDTH)
    try:
        for result in results(chosen(only), restripes, gpus(), limit):
            console.print(table(result))
    except BenchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def chosen(only: str) -> list[Row]:
    """The rows whose name contains the text; BenchError where none does."""
    found = [row for row in rows() if only in row.name]
    if not found:
        raise BenchError(f"no row is named {only!r}; there are {[row.name for row in rows()]}")
    return found
