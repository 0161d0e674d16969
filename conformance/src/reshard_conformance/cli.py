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

from reshard_conformance import registry
from reshard_conformance.case.files import CaseError
from reshard_conformance.contract import Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.mutants import device_hunt
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.sim_hunt import MUTANTS, hunt
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.registry import RegistryError
from reshard_conformance.report.console import (
    print_device_hunts,
    print_failed_step,
    print_heading,
    print_kill,
    print_lists,
    print_result,
    print_unused_waivers,
    show_progress,
)
from reshard_conformance.report.environment import environment
from reshard_conformance.report.files import verify_report, write_failures, write_report
from reshard_conformance.report.templates import scaffold
from reshard_conformance.run import suite
from reshard_conformance.run.plan import NCCL_LAYOUTS
from reshard_conformance.run.replay import NoCasesError, find_scripts, replay_cases
from reshard_conformance.run.suite import SuiteError
from reshard_conformance.search.bench import Bench, Finding, SearchHalted
from reshard_conformance.verdict.requirements import requirements
from reshard_conformance.verdict.waivers import WaiverError, load_waivers
from reshard_conformance.worlds import World

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)

FAILURES = Path("reshard-failures")


@app.callback()
def main() -> None:
    # An adapter may be in the current folder, as with python -m. Last, so that it hides nothing that is installed.
    sys.path.append(str(Path.cwd()))


class Effort(StrEnum):
    """The amount that a run plays."""

    QUICK = "quick"
    FULL = "full"
    SOAK = "soak"


Name = Annotated[
    str | None,
    typer.Option("--implementation", "-i", help="A known name (see list) or package.module:attribute.", metavar="NAME"),
]


@contextmanager
def usage_errors() -> Iterator[None]:
    """Print an error of the user's as one sentence, and exit with code 2."""
    try:
        yield
    except (RegistryError, SuiteError, WaiverError, CaseError, NoCasesError) as error:
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
    layouts: Annotated[int, typer.Option(min=1, help="About how many layouts to draw in nccl.")] = NCCL_LAYOUTS,
) -> None:
    """Judge an implementation by its claims; exit code 0 only with a certificate."""
    console = Console(highlight=False)
    with usage_errors():
        subject = registry.load(implementation)
        excuses = () if waivers is None else load_waivers(waivers)
        fresh = secrets.randbits(24) if seed is None else seed
        print_heading(console, subject, environment(), fresh)
        with show_progress(console) as on_update:
            result = suite.run_suite(
                str(implementation),
                tuple(world.split(",")),
                None if profiles is None else parse_profiles(profiles),
                effort=effort.value,
                seed=fresh,
                sizes=None if world_size is None else (world_size,),
                jobs=jobs,
                layouts=layouts,
                waivers=excuses,
                on_update=on_update,
            )
    folder = FAILURES if report_dir is None else report_dir
    if report_dir is not None:
        write_report(result, report_dir, str(implementation))
    elif result.failures:
        write_failures(result.failures, folder)
    print_result(console, result, str(implementation), folder)
    print_unused_waivers(console, excuses, result)
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
    not_claimed: dict[str, list[str]] = {}
    with usage_errors():
        subject = registry.load(implementation)
        suite.check_worlds((world,), str(implementation), subject.claims)
        with closing(registry.world(world)) as opened:
            for name, faults, needed in replays(files or None, str(implementation), opened, prop):
                if needed:
                    not_claimed.setdefault(needed, []).append(name)
                elif faults is None:
                    passed += 1
                else:
                    failed += 1
                    print_failed_step(console, name, faults)
    for needed, names in not_claimed.items():
        console.print(f"not claimed ({needed}): {len(names)}: {', '.join(names)}", soft_wrap=True)
    typer.echo(f"{passed} passed, {failed} failed")
    raise typer.Exit(0 if passed and not failed else 1)


def replays(
    files: list[Path] | None, name: str, world: World, prop: str | None
) -> Iterator[tuple[str, Sequence[str] | None, str]]:
    """Yield the name, the faults (None: it passed) and the profiles not claimed of each step, or with a property of each script."""
    if prop is not None:
        yield from judge_scripts(files, name, world, prop)
        return
    for step in replay_cases(name, world, files):
        outcome = step.outcome
        faults = None if outcome is None or outcome.verdict == "pass" else (outcome.verdict, *outcome.faults)
        yield step.name, faults, ", ".join(profile.value for profile in step.missing)


def judge_scripts(
    files: list[Path] | None, name: str, world: World, prop: str
) -> Iterator[tuple[str, Sequence[str] | None, str]]:
    if prop not in PROPERTIES:
        raise SuiteError(f"property {prop!r} is not known; --property can name {', '.join(PROPERTIES)}")
    for path, script in find_scripts(files):
        bench = Bench(world, name, Space(), traced=PROPERTIES[prop].traced)
        with closing(bench):
            try:
                PROPERTIES[prop].judge(bench, script)
            except (Finding, SearchHalted):
                yield path.name, (bench.finding.verdict, *bench.finding.faults) if bench.finding else (), ""
            else:
                yield path.name, None, ""


@app.command("list")
def list_all() -> None:
    """Show the implementations, the properties of the suite and the requirements."""
    print_lists(Console(highlight=False), registry.known(), list(PROPERTIES.values()), requirements())


@app.command()
def mutants(
    names: Annotated[list[str] | None, typer.Argument(help="Only these; by default all, and the unbroken one.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--report", help="Write the shrunk case of each killed mutant here.")
    ] = None,
    world: Annotated[str, typer.Option(help="sim, or nccl for the mutants that only a device shows.")] = "sim",
) -> None:
    """Hunt broken implementations; exit code 0 when the suite fails each of them and passes the unbroken one."""
    if world != "sim":
        raise typer.Exit(0 if hunt_on_devices(world, FAILURES if folder is None else folder) else 1)
    unknown = sorted(set(names or ()) - set(MUTANTS))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no mutant; there are {', '.join(MUTANTS)}")
    killed = survived = 0
    for kind in [MUTANTS[name] for name in names or MUTANTS]:
        kill = hunt(kind)
        print_kill(kind, kill)
        killed, survived = killed + (kill.failure is not None), survived + (kill.failure is None)
        if folder is not None and kill.failure is not None:
            write_failures([kill.failure], folder)
    sound = True
    if not names:
        kill = hunt(Plain)
        print_kill(Plain, kill)
        sound = kill.failure is None
    typer.echo(f"{killed} killed, {survived} survived{'' if sound else ', and so was what they break'}")
    raise typer.Exit(0 if killed and sound and not survived else 1)


def hunt_on_devices(name: str, folder: Path) -> bool:
    """Hunt the mutants of devices; return True if each was killed and the unbroken implementation passed."""
    console = Console(highlight=False, width=200)
    results = []
    with usage_errors(), closing(registry.world(name, limit=device_hunt.STEP_LIMIT)) as world:
        for result in device_hunt.hunt_all(world):
            results.append(result)
            typer.echo(f"{result.verdict}: {result.mutant.name} ({result.target.prop}, {result.scripts} scripts)")
    write_failures([result.failure for result in results if result.failure is not None], folder)
    print_device_hunts(console, results, folder)
    broken = [result for result in results if result.mutant.breaks]
    caught = sum(result.as_expected for result in broken)
    typer.echo(f"{caught} caught, {len(broken) - caught} not")
    return all(result.as_expected for result in results)


@app.command()
def verify(folder: Annotated[Path, typer.Argument(metavar="REPORT", help="The folder of a report.")]) -> None:
    """Verify that a report is whole and that its verdict follows from it."""
    faults = verify_report(folder)
    for fault in faults:
        typer.echo(fault)
    typer.echo("broken report" if faults else "whole report")
    raise typer.Exit(1 if faults else 0)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The package to write, such as mylib_conformance.")],
    into: Annotated[Path, typer.Option(help="Where its folder goes.")] = Path(),
) -> None:
    """Write a package with an adapter for an implementation; at first it adapts the reference."""
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
