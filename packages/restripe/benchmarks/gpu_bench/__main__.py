"""Run the benchmark: tables and targets on the terminal, JSON and a plot in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpu_bench import libraries, peer_copy
from gpu_bench.consumer import check_upstream
from gpu_bench.plot import plot
from gpu_bench.processes import SHARED_GPU_NOTE, play_rows, rank_count, shares_gpus, time_limit
from gpu_bench.provenance import provenance, summary
from gpu_bench.reports import page, run_json
from gpu_bench.results import Result, Spread, table
from gpu_bench.rows import consumer_rows, left_out, rows
from gpu_bench.targets import Verdict, all_verdicts, tally, terminal_verdicts
from restripe.bench.transfers import BenchError, Row, select_rows
from restripe.cli import WIDTH

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
        typer.Option(
            help="How many ranks; left out, one a GPU. With more than GPUs only bytes are checked, and consumer rows timed on the host."
        ),
    ] = None,
    upstream: Annotated[
        str, typer.Option(help="A module with the function that restripe replaces, and its clear; on sys.path.")
    ] = "",
    tables: Annotated[Path | None, typer.Option(help="A file for the tables in Markdown.")] = None,
) -> None:
    """Time restripe beside raw NCCL, peer copies and other libraries, on every GPU of this host."""
    console = Console(width=WIDTH)
    results: list[Result] = []
    fault = ""
    try:
        size = rank_count(ranks)
        selected = select_rows([*rows(size), *consumer_rows(size)], only, size)
        if upstream:
            check_upstream(upstream)
        origin = provenance()
        note = SHARED_GPU_NOTE if shares_gpus(size) else ""
        for line in filter(None, (summary(origin), left_out(size), note)):
            console.print(line, highlight=False)
        seconds = time_limit(selected, shared=bool(note)) if limit is None else limit
        make = partial(libraries.make_contenders, upstream=upstream)
        for result in play_rows(selected, make, size, seconds):
            console.print(table(result))
            results.append(result)
    except BenchError as error:
        fault = str(error)
        typer.echo(fault, err=True)
    if results:
        peer_copies = {} if note else peer_copy.measure_copies(selected)
        verdicts = list(all_verdicts(results))
        print_verdicts(console, selected, peer_copies, verdicts)
        out.mkdir(parents=True, exist_ok=True)
        report = run_json(origin, results, peer_copies, verdicts)
        files = [out / "report.json", *([tables] if tables else [])]
        files[0].write_text(json.dumps(report, indent=1), encoding="utf-8")
        if tables:
            tables.write_text(page(origin, results, peer_copies, verdicts, note), encoding="utf-8")
        for kind in () if note else ("svg", "png"):
            plot(results, out / f"ratios.{kind}")
            files.append(out / f"ratios.{kind}")
        console.print(f"written: {', '.join(map(str, files))}")
    if fault or any(timing.wrong_bytes for result in results for timing in result.timings.values()):
        raise typer.Exit(2 if fault else 1)


def print_verdicts(
    console: Console, selected: Sequence[Row], peer_copies: dict[str, Spread], verdicts: Sequence[Verdict]
) -> None:
    """Print the peer copies and the targets."""
    for row in selected:
        if row.name in peer_copies:
            time = peer_copies[row.name].median
            console.print(f"peer copy, {row.name}: {time / 1e3:.3g} ms, {row.size_bytes / time / 1e3:.4g} GB/s")
    for verdict in terminal_verdicts(verdicts):
        console.print(verdict.text, highlight=False)
    console.print(tally(verdicts))


if __name__ == "__main__":
    app()
