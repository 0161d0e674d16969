"""The command line: run the suite, replay cases, list what there is, verify a report, start an adapter."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reshard_conformance import display, report, suite
from reshard_conformance.cases import CaseError, packaged
from reshard_conformance.cases import load as load_scripts
from reshard_conformance.contract import Profile
from reshard_conformance.environment import environment
from reshard_conformance.generator import Space
from reshard_conformance.mutants import devices
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.zoo import MUTANTS, hunt
from reshard_conformance.plan import LAYOUTS
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.registry import RegistryError, known, load
from reshard_conformance.registry import world as make_world
from reshard_conformance.replay import replay as replay_files
from reshard_conformance.requirements import requirements
from reshard_conformance.search import Bench, Finding, Halt
from reshard_conformance.suite import SuiteError
from reshard_conformance.templates import scaffold
from reshard_conformance.waivers import WaiverError, load_waivers
from reshard_conformance.worlds import World

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)

FAILURES = Path("reshard-failures")


@app.callback()
def main() -> None:
    # An adapter may lie in the current folder, as with python -m; last, so that it hides nothing that is installed.
    sys.path.append(str(Path.cwd()))


class Effort(StrEnum):
    """How much is played."""

    QUICK = "quick"
    FULL = "full"
    SOAK = "soak"


Name = Annotated[
    str | None,
    typer.Option("--implementation", "-i", help="A known name (see list) or package.module:attribute.", metavar="NAME"),
]


@contextmanager
def usage() -> Iterator[None]:
    """What was asked for wrongly is one sentence and exit code 2."""
    try:
        yield
    except (RegistryError, SuiteError, WaiverError, CaseError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command()
def run(
    implementation: Name = None,
    world: Annotated[str, typer.Option(help="One or several of sim, gloo and nccl, with commas.")] = "sim",
    world_size: Annotated[int | None, typer.Option(help="Only worlds of so many ranks.")] = None,
    profiles: Annotated[str | None, typer.Option(help="Profiles, with commas; all claimed ones by default.")] = None,
    effort: Annotated[Effort, typer.Option(help="full plays 5 times, soak 50 times as much as quick.")] = Effort.QUICK,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the fresh part; drawn and printed by default.")
    ] = None,
    report_dir: Annotated[
        Path | None, typer.Option("--report", help="Write report.json, junit.xml and index.html here.")
    ] = None,
    waivers: Annotated[Path | None, typer.Option(help="A TOML file of failures excused by public bugs.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Worker processes; one a processor by default, and in nccl four for each eight GPUs or fewer."
        ),
    ] = None,
    layouts: Annotated[int, typer.Option(min=1, help="About how many layouts to draw in nccl.")] = LAYOUTS,
) -> None:
    """Judge an implementation by all that it claims; exit code 0 only with a certificate."""
    console = Console(highlight=False)
    with usage():
        found = load(implementation)
        excuses = () if waivers is None else load_waivers(waivers)
        fresh = secrets.randbits(24) if seed is None else seed
        display.heading(console, found, environment(), fresh)
        with display.progress(console) as tell:
            result = suite.run(
                str(implementation),
                tuple(world.split(",")),
                None if profiles is None else parse_profiles(profiles),
                effort=effort.value,
                seed=fresh,
                sizes=None if world_size is None else (world_size,),
                jobs=jobs,
                layouts=layouts,
                waivers=excuses,
                tell=tell,
            )
    folder = FAILURES if report_dir is None else report_dir
    if report_dir is not None:
        report.write(result, report_dir, str(implementation))
    elif result.failures:
        report.write_failures(result.failures, folder)
    display.outcome(console, result, str(implementation), folder)
    display.unused(console, excuses, result)
    typer.echo(result.line)
    raise typer.Exit(result.exit_code)


def parse_profiles(text: str) -> list[Profile]:
    names = [profile.value for profile in Profile]
    for name in text.split(","):
        if name not in names:
            raise SuiteError(f"profile {name!r} is not known; --profiles can name {', '.join(names)}")
    return [Profile(name) for name in text.split(",")]


@app.command()
def replay(
    files: Annotated[list[Path] | None, typer.Argument(help="Case files; the packaged ones by default.")] = None,
    implementation: Name = None,
    world: Annotated[str, typer.Option(help="sim, gloo or nccl.")] = "sim",
    prop: Annotated[
        str | None, typer.Option("--property", help="Judge each file by this property of the suite; see list.")
    ] = None,
) -> None:
    """Play case files again; exit code 0 when some passed and none failed."""
    console = Console(highlight=False)
    passed = failed = 0
    missing: dict[str, list[str]] = {}
    with usage():
        found = load(implementation)
        suite.check_worlds((world,), str(implementation), found.claims)
        with closing(make_world(world)) as place:
            for name, faults, needed in replays(files, str(implementation), place, prop):
                if needed:
                    missing.setdefault(needed, []).append(name)
                elif faults is None:
                    passed += 1
                else:
                    failed += 1
                    display.failed(console, name, faults)
    for needed, names in missing.items():
        console.print(f"not claimed ({needed}): {len(names)}: {', '.join(names)}", soft_wrap=True)
    typer.echo(f"{passed} passed, {failed} failed")
    raise typer.Exit(0 if passed and not failed else 1)


def replays(
    files: list[Path] | None, name: str, world: World, prop: str | None
) -> Iterator[tuple[str, Sequence[str] | None, str]]:
    """Each replayed step (with a property: each script): its name, its faults or None, and profiles that it lacks."""
    if prop is not None:
        yield from judged(files, name, world, prop)
        return
    for step in replay_files(name, world, files):
        outcome = step.outcome
        faults = None if outcome is None or outcome.verdict == "pass" else (outcome.verdict, *outcome.faults)
        yield step.name, faults, ", ".join(profile.value for profile in step.missing)


def judged(
    files: list[Path] | None, name: str, world: World, prop: str
) -> Iterator[tuple[str, Sequence[str] | None, str]]:
    if prop not in PROPERTIES:
        raise SuiteError(f"property {prop!r} is not known; --property can name {', '.join(PROPERTIES)}")
    for path in packaged() if files is None else files:
        for script in load_scripts(path):
            bench = Bench(world, name, Space(), traced=PROPERTIES[prop].traced)
            with closing(bench):
                try:
                    PROPERTIES[prop].judge(bench, script)
                except (Finding, Halt):
                    yield path.name, (bench.found.verdict, *bench.found.faults) if bench.found else (), ""
                else:
                    yield path.name, None, ""


@app.command("list")
def list_all() -> None:
    """Show the implementations, the properties of the suite and the requirements."""
    display.lists(Console(highlight=False), known(), list(PROPERTIES.values()), requirements())


@app.command()
def mutants(
    names: Annotated[list[str] | None, typer.Argument(help="Only these; by default all, and the unbroken one.")] = None,
    folder: Annotated[Path | None, typer.Option("--report", help="Write the shrunk case of each kill here.")] = None,
    world: Annotated[str, typer.Option(help="sim, or nccl for the breaks that a device has to show.")] = "sim",
) -> None:
    """Hunt broken implementations: exit code 0 when the suite kills every one and passes what they break."""
    if world != "sim":
        raise typer.Exit(0 if hunt_breaks(world, FAILURES if folder is None else folder) else 1)
    unknown = sorted(set(names or ()) - set(MUTANTS))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no mutant; there are {', '.join(MUTANTS)}")
    killed = survived = 0
    for kind in [MUTANTS[name] for name in names or MUTANTS]:
        kill = hunt(kind)
        display.hunted(kind, kill)
        killed, survived = killed + (kill.failure is not None), survived + (kill.failure is None)
        if folder is not None and kill.failure is not None:
            report.write_failures([kill.failure], folder)
    sound = True
    if not names:
        kill = hunt(Plain)
        display.hunted(Plain, kill)
        sound = kill.failure is None
    typer.echo(f"{killed} killed, {survived} survived{'' if sound else ', and so was what they break'}")
    raise typer.Exit(0 if killed and sound and not survived else 1)


def hunt_breaks(name: str, folder: Path) -> bool:
    """Hunt the breaks of devices; whether each was killed, and what they break was not."""
    console = Console(highlight=False, width=200)
    found = []
    with usage(), closing(make_world(name, limit=devices.LIMIT)) as world:
        for one in devices.hunts(world):
            found.append(one)
            typer.echo(f"{one.word}: {one.kind.name} ({one.sought.prop}, {one.scripts} scripts)")
    report.write_failures([one.failure for one in found if one.failure is not None], folder)
    display.hunts(console, found, folder)
    broken = [one for one in found if one.kind.breaks]
    killed = sum(one.good for one in broken)
    typer.echo(f"{killed} caught, {len(broken) - killed} not")
    return all(one.good for one in found)


@app.command()
def verify(folder: Annotated[Path, typer.Argument(metavar="REPORT", help="The folder of a report.")]) -> None:
    """Say whether a report is whole and its verdict follows from it."""
    faults = report.verify(folder)
    for fault in faults:
        typer.echo(fault)
    typer.echo("broken report" if faults else "whole report")
    raise typer.Exit(1 if faults else 0)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The package to write, such as mylib_conformance.")],
    into: Annotated[Path, typer.Option(help="Where its folder goes.")] = Path(),
) -> None:
    """Write a package with an adapter for an implementation; it runs as it is, over the reference."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise typer.BadParameter(f"expected a name of a Python package in small letters, got {name!r}")
    if (into / name).exists():
        raise typer.BadParameter(f"{into / name} is there already")
    for file, text in scaffold(name).items():
        path = into / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(str(path))
    typer.echo(f"next: pip install -e {into / name} && reshard-conformance run --implementation {name}")
