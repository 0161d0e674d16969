"""What the command line shows: a heading, progress while a run is on, and tables at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from reshard_conformance.contract import Implementation, Profile
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.zoo import Kill
from reshard_conformance.report import failure_json, replay_command
from reshard_conformance.requirements import Requirement
from reshard_conformance.results import Failure, Result, Tally
from reshard_conformance.search import Property
from reshard_conformance.waivers import Waiver
from reshard_conformance.workers import Part

__all__ = ["failed", "heading", "hunted", "lists", "outcome", "progress", "unused"]

Tell = Callable[[Part, int], None]


def heading(console: Console, found: Implementation, versions: Mapping[str, str], seed: int) -> None:
    """Who is judged, by what, and with which seed."""
    claims = found.claims
    names = ", ".join(profile.value for profile in Profile if profile in claims.profiles)
    console.print(f"{found.name} {found.version}, claiming level {claims.level.name}; profiles {names or 'none'}")
    console.print(", ".join(f"{name} {value}" for name, value in versions.items()), soft_wrap=True)
    console.print(f"fixed seeds from 0; --seed {seed} for the fresh part")


@contextmanager
def progress(console: Console) -> Iterator[Tell]:
    """Something to tell of each part of a run: a live bar in a terminal, elsewhere a line at every tenth."""
    counts = {"parts": 0, "scripts": 0, "failed": 0}

    def count(part: Part) -> str:
        counts["parts"] += 1
        counts["scripts"] += part.scripts
        counts["failed"] += part.failure is not None
        return f"{counts['scripts']} scripts, {counts['failed']} searches failed"

    if not console.is_terminal:

        def tell(part: Part, parts: int) -> None:
            text = count(part)
            if counts["parts"] * 10 // parts > (counts["parts"] - 1) * 10 // parts:
                console.print(f"{counts['parts']} of {parts} parts: {text}")

        yield tell
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda part, parts: bar.update(task, total=parts, advance=1, description=count(part))


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
    for kind in tally.coverage.classes:
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
