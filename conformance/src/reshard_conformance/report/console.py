"""Console output: a heading, the progress of a run, and tables at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from reshard_conformance.contract import Implementation, Profile
from reshard_conformance.mutants.device_hunt import HuntResult
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.sim_hunt import Kill
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.report.files import failure_json, replay_command
from reshard_conformance.run.plan import Chunk
from reshard_conformance.run.suite import OnUpdate
from reshard_conformance.run.workers import ChunkProgress, ChunkResult
from reshard_conformance.search.bench import Property
from reshard_conformance.verdict.requirements import Requirement
from reshard_conformance.verdict.results import Failure, Result, Tally
from reshard_conformance.verdict.waivers import Waiver

__all__ = [
    "RunProgress",
    "print_device_hunts",
    "print_failed_step",
    "print_heading",
    "print_kill",
    "print_lists",
    "print_result",
    "print_unused_waivers",
    "show_progress",
]

#: Seconds between two lines of progress.
LINE_INTERVAL = 4.0


def print_heading(console: Console, subject: Implementation, versions: Mapping[str, str], seed: int) -> None:
    """Print the implementation, its claims, the versions and the seed."""
    claims = subject.claims
    names = ", ".join(profile.value for profile in Profile if profile in claims.profiles)
    console.print(f"{subject.name} {subject.version}, claiming level {claims.level.name}; profiles {names or 'none'}")
    console.print(", ".join(f"{name} {value}" for name, value in versions.items()), soft_wrap=True)
    console.print(f"fixed seeds from 0; --seed {seed} for the fresh part")


class RunProgress:
    """Counts what a run has played so far, and describes it in a line. clock: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began, self.last = clock(), -math.inf
        self.parts = self.scripts = self.failed = 0
        self.layouts: set[bytes] = set()
        self.running: dict[Chunk, int] = {}

    def add(self, update: ChunkResult | ChunkProgress) -> None:
        """Count a part that has ended, or the progress of one that is running."""
        if isinstance(update, ChunkProgress):
            self.running[update.chunk] = update.layouts
            return
        self.running.pop(update.chunk, None)
        self.parts += 1
        self.scripts += update.scripts
        self.failed += update.failure is not None
        self.layouts |= update.layouts

    def is_due(self, *, ended: bool) -> bool:
        """Return True once per LINE_INTERVAL, and at the end."""
        if not ended and self.clock() - self.last < LINE_INTERVAL:
            return False
        self.last = self.clock()
        return True

    def line(self, update: ChunkResult | ChunkProgress, chunks: int) -> str:
        """Return a line on the parts, layouts and failures so far, and on what is played."""
        chunk, layouts = update.chunk, len(self.layouts) + sum(self.running.values())
        sizes = (
            f"{chunk.sizes[0]} ranks" if len(chunk.sizes) == 1 else f"{min(chunk.sizes)} to {max(chunk.sizes)} ranks"
        )
        speed = layouts / max(self.clock() - self.began, 1e-3)
        what = f"{chunk.world}, {PROPERTIES[chunk.prop].profile.value}/{chunk.prop}, {sizes}"
        return f"{self.parts} of {chunks} parts, {layouts} layouts, {speed:.1f} a second, {self.failed} failed ({what})"


@contextmanager
def show_progress(console: Console) -> Iterator[OnUpdate]:
    """Yield a function that shows each update of a run: a live bar in a terminal, elsewhere a line every few seconds."""
    run = RunProgress()
    if not console.is_terminal:

        def show_line(update: ChunkResult | ChunkProgress, /, chunks: int) -> None:
            run.add(update)
            if run.is_due(ended=run.parts == chunks):
                typer.echo(run.line(update, chunks))

        yield show_line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show_bar(update: ChunkResult | ChunkProgress, /, chunks: int) -> None:
            run.add(update)
            bar.update(task, total=chunks, completed=run.parts, description=run.line(update, chunks))

        yield show_bar


def print_result(console: Console, result: Result, name: str, folder: Path) -> None:
    """Print tables of what was played, and every failure with the command that replays it."""
    console.print(property_table(list(result.tallies.values())))
    for tally in result.tallies.values():
        if tally.floors:
            console.print(coverage_table(tally))
    for world in result.worlds:
        fresh = sum(failure.fresh and failure.world == world for failure in result.failures)
        number = len(result.fresh.get(world, ()))
        console.print(f"fresh part in {world}, seed {result.seed}: {number} layouts, {fresh} failures")
        console.print(f"golden beside it in {world}: {len(result.in_lockstep.get(world, ()))} layouts")
        dtypes = sorted(result.dtypes.get(world, ()))
        console.print(f"{len(dtypes)} dtypes in {world}: {', '.join(dtypes)}", soft_wrap=True)
    for ranks, versions in result.rank_versions.items():
        console.print(f"{ranks}: {versions}", soft_wrap=True)
    not_shown = ", ".join(profile.value for profile in result.profiles if profile not in result.shown)
    if not_shown:
        console.print(f"claimed, but not shown in {', '.join(result.worlds)}: {not_shown}", soft_wrap=True)
    for failure in result.failures:
        print_failure(console, failure, name, folder)


def print_unused_waivers(console: Console, waivers: Sequence[Waiver], result: Result) -> None:
    """Print the waivers that have excused nothing; they should be removed."""
    used = [failure.waiver for failure in result.failures]
    for waiver in waivers:
        if waiver not in used:
            console.print(f"waiver for {waiver.requirement} ({waiver.bug}) excuses nothing: remove it", soft_wrap=True)


def property_table(tallies: Sequence[Tally]) -> Table:
    table = Table("world", "profile", "property", title=None)
    for heading in ("scripts", "cases", "failed"):
        table.add_column(heading, justify="right")
    for tally in tallies:
        numbers = (str(tally.scripts), str(tally.coverage.total), str(tally.failed))
        table.add_row(tally.world, tally.profile.value, tally.prop, *numbers)
    return table


def coverage_table(tally: Tally) -> Table:
    table = Table(f"class of layouts in {tally.world}")
    for heading in ("cases", "share", "floor"):
        table.add_column(heading, justify="right")
    for kind in tally.classes:
        share = tally.coverage.share(kind)
        style = "bold red" if share < kind.floor else ""
        table.add_row(
            kind.name, str(tally.coverage.counts[kind.name]), f"{share:.1%}", f"{kind.floor:.0%}", style=style
        )
    return table


def print_failure(console: Console, failure: Failure, name: str, folder: Path) -> None:
    excuse = " (waived)" if failure.waiver else " (against a SHOULD only)" if failure.advisory else ""
    console.print(f"\nfailure{excuse} of property {failure.prop} in {failure.world}:", style="bold")
    for fault in failure.faults:
        console.print(f"  {fault}", soft_wrap=True, markup=False)
    if not failure.again:
        console.print("  it did not fail each time: state from outside of the case has a part in it")
    command = replay_command(str(folder / failure.file), name, failure_json(failure))
    console.print(f"  {folder / failure.file}\n  {command}", soft_wrap=True, markup=False)


def print_failed_step(console: Console, name: str, faults: Sequence[str]) -> None:
    """Print a replayed step that failed."""
    console.print(f"failed: {name}", style="bold", soft_wrap=True, markup=False)
    for fault in faults:
        console.print(f"  {fault}", soft_wrap=True, markup=False)


def print_kill(kind: type[Plain], kill: Kill) -> None:
    """Print one line on the result of hunting a mutant in sim."""
    if kill.failure is None:
        word = "survived" if kind.breaks else "passed  "
        typer.echo(f"{word}  {kind.name}: {(kind.__doc__ or '').strip()} ({kill.scripts} scripts)")
        return
    aim = "by what it breaks" if kind.breaks in kill.shown_requirements else f"though it breaks {kind.breaks}"
    size = f"{len(kill.failure.script)} steps, after {kill.scripts} scripts"
    typer.echo(f"killed    {kind.name}: {(kind.__doc__ or '').strip()} ({kill.failure.prop}, {aim}; {size})")


def print_device_hunts(console: Console, results: Sequence[HuntResult], folder: Path) -> None:
    """Print a table of the mutants hunted on devices, with the fault and the case file of each."""
    table = Table("implementation", "what is wrong with it", "property", "scripts", "", "why", "case")
    for result in results:
        failure = result.failure
        fault, case = ("", "") if failure is None else (failure.faults[0], str(folder / failure.file))
        defect = (result.mutant.__doc__ or "").strip().split("\n")[0]
        numbers = (result.target.prop, str(result.scripts), result.verdict)
        style = "" if result.as_expected else "bold red"
        table.add_row(result.mutant.name, defect, *numbers, fault, case, style=style)
    console.print(table)


def print_lists(
    console: Console, places: Mapping[str, str], props: Sequence[Property], entries: Sequence[Requirement]
) -> None:
    """Print the implementations, the properties and the requirements."""
    table = Table("implementation", "where")
    for name, place in places.items():
        table.add_row(name, place)
    console.print(table)
    table = Table("profile", "property", "shows")
    for prop in props:
        table.add_row(prop.profile.value, prop.name, ", ".join(prop.requirements))
    console.print(table)
    table = Table("requirement", "strength", "profile", "status", "title")
    for entry in entries:
        profile = entry.profile.value if entry.profile else "(restripe's own tests)"
        table.add_row(entry.id, entry.strength, profile, entry.status, entry.title)
    console.print(table)
