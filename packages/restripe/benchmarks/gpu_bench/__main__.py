"""Run the benchmark: tables and targets on the terminal, JSON and a plot in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpu_bench import contenders, peer
from gpu_bench.pages import page
from gpu_bench.plot import plot
from gpu_bench.provenance import provenance, summary
from gpu_bench.report import report
from gpu_bench.targets import Verdict, memories, shown, tally, verdicts
from restripe.bench.results import Result, Spread
from restripe.bench.rows import Row, left_out
from restripe.bench.table import WIDTH, table
from restripe.bench.world import NO_TIMES, BenchError, allowed, crowded, results, taking_part
from restripe.cli import chosen

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="The folder for report.json, ratios.svg and ratios.png.")] = Path(
        "gpu-bench"
    ),
    only: Annotated[str, typer.Option("--rows", help="Only rows whose name contains this.")] = "",
    limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which the run is ended; what is done by then is kept. Left out, it follows from the rows."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(help="How many ranks; left out, one a GPU. With more than GPUs only bytes are checked."),
    ] = None,
    tables: Annotated[Path | None, typer.Option(help="A file for the tables in Markdown.")] = None,
) -> None:
    """Time restripe beside raw NCCL, peer copies and other libraries, on every GPU of this host."""
    console = Console(width=WIDTH)
    found: list[Result] = []
    fault = ""
    try:
        size = taking_part(ranks)
        rows = chosen(only, size)
        origin = provenance()
        note = NO_TIMES if crowded(size) else ""
        for line in filter(None, (summary(origin), left_out(size), note)):
            console.print(line, highlight=False)
        for result in results(rows, contenders.every, size, allowed(rows) if limit is None else limit):
            console.print(table(result))
            found.append(result)
    except BenchError as error:
        fault = str(error)
        typer.echo(fault, err=True)
    if found:
        limits, judged = judge(rows, found, timed=not note)
        tell(console, rows, limits, judged)
        out.mkdir(parents=True, exist_ok=True)
        files = [out / "report.json", *([tables] if tables else [])]
        files[0].write_text(json.dumps(report(origin, found, limits, judged), indent=1), encoding="utf-8")
        if tables:
            tables.write_text(page(origin, found, limits, judged, note), encoding="utf-8")
        for kind in () if note else ("svg", "png"):
            plot(found, out / f"ratios.{kind}")
            files.append(out / f"ratios.{kind}")
        console.print(f"written: {', '.join(map(str, files))}")
    if fault or any(timing.wrong_bytes for result in found for timing in result.timings.values()):
        raise typer.Exit(2 if fault else 1)


def judge(rows: Sequence[Row], found: Sequence[Result], *, timed: bool) -> tuple[dict[str, Spread], list[Verdict]]:
    """The limits and the targets; of a run whose times say nothing, the memory alone."""
    return (peer.copies(rows), list(verdicts(found))) if timed else ({}, list(memories(found)))


def tell(console: Console, rows: Sequence[Row], limits: dict[str, Spread], judged: Sequence[Verdict]) -> None:
    """The limits and the targets on the terminal."""
    for row in rows:
        if row.name in limits:
            time = limits[row.name].median
            console.print(f"peer copy, {row.name}: {time / 1e3:.3g} ms, {row.size / time / 1e3:.4g} GB/s")
    for verdict in shown(judged):
        console.print(verdict.text, highlight=False)
    console.print(tally(judged))


if __name__ == "__main__":
    app()
