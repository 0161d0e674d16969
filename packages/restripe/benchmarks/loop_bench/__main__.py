"""Run the benchmark: refits tensor by tensor between two processes, with a foreign mesh class and with restripe's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gpu_bench.processes import play_rows
from gpu_bench.reports import row_json
from gpu_bench.results import Result, table
from gpu_bench.targets import all_verdicts
from loop_bench.contenders import RANKS, cpu_rows, make_contenders
from restripe.bench.transfers import BenchError, select_rows
from restripe.cli import WIDTH

LIMIT = 1800.0  # seconds; a quiet machine takes about three minutes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="The folder for loop.json.")] = Path("plan-bench"),
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
) -> None:
    """Time the drop-in with a mesh class of the caller's own beside that with restripe.Mesh, on the CPU."""
    console, results = Console(width=WIDTH), list[Result]()
    try:
        selected = select_rows(cpu_rows(), only, RANKS)
        for result in play_rows(selected, make_contenders, RANKS, LIMIT, on_cpu=True):
            console.print(table(result))
            results.append(result)
    except BenchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    out.mkdir(parents=True, exist_ok=True)
    report = loop_json(results)
    for target in report["targets"]:
        console.print(target["text"], highlight=False)
    (out / "loop.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    console.print(f"written: {out}/loop.json")
    if any(timing.wrong_bytes for result in results for timing in result.timings.values()):
        raise typer.Exit(1)


def loop_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the rows, and the verdicts on what was measured, for JSON."""
    verdicts = [verdict for verdict in all_verdicts(results) if verdict.spread is not None]
    return {
        "rows": [row_json(result, None) for result in results],
        "targets": [verdict.to_json() for verdict in verdicts],
    }


if __name__ == "__main__":
    app()
