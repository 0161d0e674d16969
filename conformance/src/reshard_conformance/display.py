"""What the command line shows: a heading, progress while a run is on, and tables at its end."""

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
from reshard_conformance.mutants.devices import Hunted
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.zoo import Kill
from reshard_conformance.plan import Chunk
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.report import failure_json, replay_command
from reshard_conformance.requirements import Requirement
from reshard_conformance.results import Failure, Result, Tally
from reshard_conformance.search import Property
from reshard_conformance.suite import Tell
from reshard_conformance.waivers import Waiver
from reshard_conformance.workers import Part, Pulse

__all__ = ["Progress", "failed", "heading", "hunted", "hunts", "lists", "outcome", "progress", "unused"]

#: How often a run tells how far it has come.
SECONDS = 4.0


def heading(console: Console, found: Implementation, versions: Mapping[str, str], seed: int) -> None:
    """Who is judged, by what, and with which seed."""
    claims = found.claims
    names = ", ".join(profile.value for profile in Profile if profile in claims.profiles)
    console.print(f"{found.name} {found.version}, claiming level {claims.level.name}; profiles {names or 'none'}")
    console.print(", ".join(f"{name} {value}" for name, value in versions.items()), soft_wrap=True)
    console.print(f"fixed seeds from 0; --seed {seed} for the fresh part")


class Progress:
    """An account of a run that is on, and a line for each few seconds of it. clock: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began, self.last = clock(), -math.inf
        self.parts = self.scripts = self.failed = 0
        self.layouts: set[bytes] = set()
        self.running: dict[Chunk, int] = {}

    def take(self, told: Part | Pulse) -> None:
        """Take in a part that has ended, or how far one has come."""
        if isinstance(told, Pulse):
            self.running[told.chunk] = told.layouts
            return
        self.running.pop(told.chunk, None)
        self.parts += 1
        self.scripts += told.scripts
        self.failed += told.failure is not None
        self.layouts |= told.layouts

    def due(self, *, ended: bool) -> bool:
        """Whether it is time for another line: some seconds after the last one, and at the end."""
        if not ended and self.clock() - self.last < SECONDS:
            return False
        self.last = self.clock()
        return True

    def line(self, told: Part | Pulse, chunks: int) -> str:
        """What is played, how much of it was played and how fast, and what has failed."""
        chunk, layouts = told.chunk, len(self.layouts) + sum(self.running.values())
        sizes = (
            f"{chunk.sizes[0]} ranks" if len(chunk.sizes) == 1 else f"{min(chunk.sizes)} to {max(chunk.sizes)} ranks"
        )
        speed = layouts / max(self.clock() - self.began, 1e-3)
        what = f"{chunk.world}, {PROPERTIES[chunk.prop].profile.value}/{chunk.prop}, {sizes}"
        return f"{self.parts} of {chunks} parts, {layouts} layouts, {speed:.1f} a second, {self.failed} failed ({what})"


@contextmanager
def progress(console: Console) -> Iterator[Tell]:
    """Something to tell of each part of a run: a live bar in a terminal, elsewhere a line every few seconds."""
    account = Progress()
    if not console.is_terminal:

        def tell(told: Part | Pulse, /, chunks: int) -> None:
            account.take(told)
            if account.due(ended=account.parts == chunks):
                typer.echo(account.line(told, chunks))

        yield tell
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show_bar(told: Part | Pulse, /, chunks: int) -> None:
            account.take(told)
            bar.update(task, total=chunks, completed=account.parts, description=account.line(told, chunks))

        yield show_bar


def outcome(console: Console, result: Result, name: str, folder: Path) -> None:
    """Tables of what was played, and every failure with the command that plays it again."""
    console.print(properties(list(result.tallies.values())))
    for tally in result.tallies.values():
        if tally.floors:
            console.print(coverage(tally))
    for world in result.worlds:
        fresh = sum(failure.fresh and failure.world == world for failure in result.failures)
        number = len(result.fresh.get(world, ()))
        console.print(f"fresh part in {world}, seed {result.seed}: {number} layouts, {fresh} failures")
        console.print(f"golden beside it in {world}: {len(result.beside.get(world, ()))} layouts")
        dtypes = sorted(result.dtypes.get(world, ()))
        console.print(f"{len(dtypes)} dtypes in {world}: {', '.join(dtypes)}", soft_wrap=True)
    for ranks, versions in result.ground.items():
        console.print(f"{ranks}: {versions}", soft_wrap=True)
    elsewhere = ", ".join(profile.value for profile in result.profiles if profile not in result.shown)
    if elsewhere:
        console.print(f"claimed, but not shown in {', '.join(result.worlds)}: {elsewhere}", soft_wrap=True)
    for failure in result.failures:
        show(console, failure, name, folder)


def unused(console: Console, waivers: Sequence[Waiver], result: Result) -> None:
    """Waivers that have excused nothing; those are to be removed."""
    used = [failure.waiver for failure in result.failures]
    for waiver in waivers:
        if waiver not in used:
            console.print(f"waiver for {waiver.requirement} ({waiver.bug}) excuses nothing: remove it", soft_wrap=True)


def properties(tallies: Sequence[Tally]) -> Table:
    table = Table("world", "profile", "property", title=None)
    for heading_ in ("scripts", "cases", "failed"):
        table.add_column(heading_, justify="right")
    for tally in tallies:
        numbers = (str(tally.scripts), str(tally.coverage.total), str(tally.failed))
        table.add_row(tally.world, tally.profile.value, tally.prop, *numbers)
    return table


def coverage(tally: Tally) -> Table:
    table = Table(f"class of layouts in {tally.world}")
    for heading_ in ("cases", "share", "floor"):
        table.add_column(heading_, justify="right")
    for kind in tally.classes:
        share = tally.coverage.share(kind)
        style = "bold red" if share < kind.floor else ""
        table.add_row(
            kind.name, str(tally.coverage.counts[kind.name]), f"{share:.1%}", f"{kind.floor:.0%}", style=style
        )
    return table


def show(console: Console, failure: Failure, name: str, folder: Path) -> None:
    excuse = " (waived)" if failure.waiver else " (against a SHOULD only)" if failure.advisory else ""
    console.print(f"\nfailure{excuse} of property {failure.prop} in {failure.world}:", style="bold")
    for fault in failure.faults:
        console.print(f"  {fault}", soft_wrap=True, markup=False)
    if not failure.again:
        console.print("  it did not fail each time: state from outside of the case has a part in it")
    command = replay_command(str(folder / failure.file), name, failure_json(failure))
    console.print(f"  {folder / failure.file}\n  {command}", soft_wrap=True, markup=False)


def failed(console: Console, name: str, faults: Sequence[str]) -> None:
    """One replayed step that failed."""
    console.print(f"failed: {name}", style="bold", soft_wrap=True, markup=False)
    for fault in faults:
        console.print(f"  {fault}", soft_wrap=True, markup=False)


def hunted(kind: type[Plain], kill: Kill) -> None:
    """One line on how the hunt for an implementation ended."""
    if kill.failure is None:
        word = "survived" if kind.breaks else "passed  "
        typer.echo(f"{word}  {kind.name}: {(kind.__doc__ or '').strip()} ({kill.scripts} scripts)")
        return
    aim = "by what it breaks" if kind.breaks in kill.aimed else f"though it breaks {kind.breaks}"
    size = f"{len(kill.failure.script)} steps, after {kill.scripts} scripts"
    typer.echo(f"killed    {kind.name}: {(kind.__doc__ or '').strip()} ({kill.failure.prop}, {aim}; {size})")


def hunts(console: Console, found: Sequence[Hunted], folder: Path) -> None:
    """A table of the breaks: which were killed, by what, and the case file of each."""
    table = Table("implementation", "what is wrong with it", "property", "scripts", "", "why", "case")
    for one in found:
        why, case = ("", "") if one.failure is None else (one.failure.faults[0], str(folder / one.failure.file))
        about = (one.kind.__doc__ or "").strip().split("\n")[0]
        style = "" if one.good else "bold red"
        table.add_row(one.kind.name, about, one.sought.prop, str(one.scripts), one.word, why, case, style=style)
    console.print(table)


def lists(
    console: Console, places: Mapping[str, str], props: Sequence[Property], entries: Sequence[Requirement]
) -> None:
    """The implementations, the properties and the requirements."""
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
