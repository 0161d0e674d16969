"""Run the benchmark: tables and targets on the terminal, JSON and a plot in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpu_bench import contenders, peer
from gpu_bench.plot import plot
from gpu_bench.provenance import provenance, summary
from gpu_bench.report import report
from gpu_bench.targets import tally, verdicts
from restripe.bench.results import Result
from restripe.bench.rows import Row
from restripe.bench.table import WIDTH, table
from restripe.bench.world import BenchError, gpus, results
from restripe.cli import chosen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="The folder for report.json, ratios.svg and ratios.png.")] = Path(
        "gpu-bench"
    ),
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
    limit: Annotated[
        float, typer.Option(help="Seconds after which the run is ended; what is done by then is kept.")
    ] = 240.0,
) -> None:
    """Time restripe beside raw NCCL, peer copies and other libraries, on every GPU of this host."""
    console = Console(width=WIDTH)
    found: list[Result] = []
    fault = ""
    try:
        rows = chosen(only)
        origin = provenance()
        console.print(summary(origin))
        for result in results(rows, contenders.every, gpus(), limit):
            console.print(table(result))
            found.append(result)
    except BenchError as error:
        fault = str(error)
        typer.echo(fault, err=True)
    if found:
        write(console, out, origin, rows, found)
    if fault or any(timing.wrong_bytes for result in found for timing in result.timings.values()):
        raise typer.Exit(2 if fault else 1)


def write(console: Console, out: Path, origin: dict[str, object], rows: list[Row], found: list[Result]) -> None:
    """The limit, the targets, and the files."""
    limits = peer.copies(rows)
    for row in rows:
        if row.name in limits:
            time = limits[row.name].median
            console.print(f"peer copy, {row.name}: {time / 1e3:.3g} ms, {row.size / time / 1e3:.4g} GB/s")
    judged = list(verdicts(found))
    for verdict in judged:
        console.print(verdict.text, highlight=False)
    console.print(tally(judged))
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report(origin, found, limits, judged), indent=1), encoding="utf-8")
    for kind in ("svg", "png"):
        plot(found, out / f"ratios.{kind}")
    console.print(f"written: {out}/report.json, ratios.svg, ratios.png")


if __name__ == "__main__":
    app()
