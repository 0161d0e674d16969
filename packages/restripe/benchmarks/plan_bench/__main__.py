"""Run the benchmark: tables and targets on the terminal; tables, JSON and a plot in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from plan_bench import targets
from plan_bench.plot import plot
from plan_bench.quadratic import load, world_plan
from plan_bench.targets import Verdict
from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Degrees
from restripe.analysis.mapping import moves as mapped
from restripe.analysis.models import parameters
from restripe.analysis.simulation import simulate
from restripe.analysis.summary import by_kind, figures
from restripe.analysis.summary import verdict as summary_lines
from restripe.bench.planning import SHAPE, PlanningTimes, measure, moves, table
from restripe.cli import WIDTH

RANKS, QUADRATIC_RANKS = (8, 64, 512, 2048, 16384), (64, 512, 2048)
MAPPINGS = (
    ("qwen3-4b", "DP8", "TP8"),
    ("qwen3-4b", "TP2xDP4", "TP4xDP2"),
    ("qwen3-30b-a3b", "EP8xPP2", "TP8xDP2"),
    ("qwen3-30b-a3b", "EP4xDP2", "TP4xEP1xDP2"),
    ("qwen3-30b-a3b", "EP4xETP2", "EP8"),
    ("deepseek-v3", "PP16xEP16", "TP32xDP8"),
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[
        Path, typer.Option(help="The folder for report.json, tables.txt, growth.svg and growth.png.")
    ] = Path("plan-bench"),
) -> None:
    """Time planning against the tests' quadratic planner, and hold whole models against an even share for each rank."""
    console = Console(width=WIDTH, record=True)
    worlds = [measure(ranks) for ranks in RANKS]
    quadratic_ms = {ranks: quadratic_times(ranks) for ranks in QUADRATIC_RANKS}
    console.print(table(worlds))
    for ranks, times in quadratic_ms.items():
        text = ", ".join(f"{move} {milliseconds:,.0f} ms" for move, milliseconds in times.items())
        console.print(f"every pair of {ranks:,} ranks: {text}", highlight=False)
    verdicts = list(targets.planning_verdicts(worlds, quadratic_ms))
    models = {" ".join(mapping): simulate_model(console, *mapping, verdicts) for mapping in MAPPINGS}
    for verdict in verdicts:
        console.print(verdict.text, highlight=False)
    write_files(out, worlds, quadratic_ms, models, verdicts)
    (out / "tables.txt").write_text(console.export_text(), encoding="utf-8")
    console.print(f"written: {out}/report.json, tables.txt, growth.svg, growth.png")


def quadratic_times(ranks: int) -> dict[str, float]:
    """Return the milliseconds in which the quadratic planner plans each move's world, once."""
    judge, times = load(), {}
    for name, (src, dst) in moves(ranks).items():
        begin = time.perf_counter()
        world_plan(judge, src, dst, SHAPE)
        times[name] = (time.perf_counter() - begin) * 1e3
    return times


def simulate_model(console: Console, name: str, train: str, generate: str, verdicts: list[Verdict]) -> dict[str, Any]:
    """Simulate a mapping, print it, judge its balance, and return its figures."""
    tensors = mapped(parameters(name), Degrees.of(train), Degrees.of(generate))
    begin = time.perf_counter()
    totals = simulate(tensors)
    seconds = time.perf_counter() - begin
    console.print(f"\n{name}: {train} to {generate}, simulated in {seconds:.1f} s", style="bold", highlight=False)
    console.print(by_kind(tensors, totals, Rates()))
    for line in summary_lines(totals["all"], Rates()):
        console.print(line, highlight=False)
    verdicts += targets.balance_verdicts(f"{name}, {train} to {generate}", totals["all"])
    return {"seconds": seconds, "classes": {kind: figures(total, Rates()) for kind, total in totals.items()}}


def write_files(
    out: Path,
    worlds: Sequence[PlanningTimes],
    quadratic_ms: dict[int, dict[str, float]],
    models: dict[str, dict[str, Any]],
    verdicts: Sequence[Verdict],
) -> None:
    """Write the report and the plot."""
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "planning": [world.to_json() for world in worlds],
        "quadratic_ms": quadratic_ms,
        "models": models,
        "targets": [{"text": verdict.text, "holds": verdict.holds} for verdict in verdicts],
    }
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    for kind in ("svg", "png"):
        plot(worlds, quadratic_ms, out / f"growth.{kind}")


if __name__ == "__main__":
    app()
