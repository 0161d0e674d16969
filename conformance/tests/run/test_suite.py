"""Whole runs, made small: certificates, failures, and runs that cannot be."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

import pytest

from reshard_conformance import registry
from reshard_conformance.case.files import Case, load, parse
from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.implementations.golden import Golden
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run import suite
from reshard_conformance.run.suite import SuiteError
from reshard_conformance.run.workers import ChunkProgress, ChunkResult, WorkerError
from reshard_conformance.search.bench import Bench, Finding
from reshard_conformance.verdict.results import Result
from reshard_conformance.verdict.waivers import Waiver
from reshard_conformance.worlds.sim import SimWorld


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick run of a few hundred scripts; chunks carry their amounts into worker processes."""
    few = {"exact": (2, 6, 40), "models": (1, 1, 1), "submissions": (0, 0, 0), "soak": (0, 0, 0)}
    few |= {"strided": (1, 6, 40), "segmented": (1, 6, 40)}
    monkeypatch.setattr(
        "reshard_conformance.run.plan.AMOUNTS", {"sim": few, "gloo": {**few, "exact": (1, 1, 10), "models": (0, 0, 0)}}
    )
    monkeypatch.setattr("reshard_conformance.run.plan.DEFAULT_AMOUNTS", {"sim": (1, 1, 10), "gloo": (1, 1, 2)})


class Narrow(Golden):
    """Golden behind a smaller claim."""

    def __init__(self, level: Level, *profiles: Profile, worlds: tuple[str, ...] = ("sim",)) -> None:
        self.claims = Claims(level, frozenset(profiles or (Profile.CORE,)), frozenset(worlds))


class Uneven(Golden):
    """Golden, but it does nothing to a tensor with an odd dim."""

    def reshard(self, *arguments: Any, **options: Any) -> None:
        tensor = arguments[3] if arguments[0] is None else arguments[0]
        if not any(size % 2 for size in tensor.shape):
            super().reshard(*arguments, **options)


class Modest(Golden):
    """Golden, but it refuses every type of 16 bytes, which it claims, as not supported."""

    def reshard(self, *arguments: Any, **options: Any) -> None:
        tensor = arguments[3] if arguments[0] is None else arguments[0]
        if tensor.dtype.itemsize == 16:
            raise NotImplementedError("too wide")
        super().reshard(*arguments, **options)

    def error_kind(self, exception: BaseException) -> str | None:
        return "unsupported" if isinstance(exception, NotImplementedError) else super().error_kind(exception)


def words(result: Result, *ids: str) -> list[str]:
    verdicts = {verdict.requirement.id: verdict.verdict for verdict in result.verdicts}
    return [verdicts[id_] for id_ in ids]


@cache
def run_golden() -> tuple[Result, list[tuple[ChunkResult, int]]]:
    """Return golden's result in one process and the parts that were reported, each with the number of chunks."""
    parts: list[tuple[ChunkResult, int]] = []

    def collect(update: ChunkResult | ChunkProgress, /, chunks: int) -> None:
        if isinstance(update, ChunkResult):
            parts.append((update, chunks))

    return suite.run_suite("golden", seed=11, jobs=1, on_update=collect), parts


@pytest.mark.law
def test_golden_is_certified() -> None:
    result, parts = run_golden()
    assert result.line.startswith("certified: golden ")
    assert (
        f"core L3, strided, segmented over {len(result.layouts['sim'])} layouts (sim {len(result.layouts['sim'])}), 0 failures"
        in result.line
    )
    assert result.exit_code == 0
    assert len(parts) == parts[0][1]
    assert {verdict.verdict for verdict in result.verdicts} == {"passed", "planned", "not claimed"}
    claimed = [name for name, prop in PROPERTIES.items() if prop.profile in Golden.claims.profiles]
    assert list(result.tallies) == [("sim", name) for name in claimed]
    assert result.fresh["sim"]


@pytest.mark.law
def test_worker_processes_find_the_same_as_one() -> None:
    one, several = run_golden()[0], suite.run_suite("golden", seed=11, jobs=2)
    assert one.layouts == several.layouts
    assert one.dtypes == several.dtypes
    assert {"bool", "bfloat16"} <= one.dtypes["sim"]
    assert one.fresh == several.fresh
    assert [tally.coverage.counts for tally in one.tallies.values()] == [
        tally.coverage.counts for tally in several.tallies.values()
    ]


@pytest.mark.law
def test_the_seed_decides_the_fresh_part_only() -> None:
    one, other = (suite.run_suite(Narrow(Level.L3), seed=seed) for seed in (1, 2))
    assert one.layouts == other.layouts
    assert one.fresh != other.fresh


@pytest.mark.law
@pytest.mark.parametrize("level", [Level.L0, Level.L1, Level.L2])
def test_a_narrow_claim_is_certified_for_its_level_but_does_not_earn_core(level: Level) -> None:
    result = suite.run_suite(Narrow(level))
    assert f" level {level.name} over " in result.line
    assert result.exit_code == 0
    assert words(result, "RS-LAYOUT-3", "RS-EXACT-8") == ["out of reach", "out of reach"]


def test_a_failure_is_shrunk_named_once_and_fails_again(sim: SimWorld) -> None:
    result = suite.run_suite(Uneven(), profiles=(Profile.CORE,))
    assert result.exit_code == 1
    assert result.line.startswith("not certified: golden ")
    failures = [failure for failure in result.failures if failure.prop == "exact"]
    assert len(failures) == 1
    assert len({failure.kind for failure in result.failures}) == len(result.failures)
    (step,) = map(parse, failures[0].script)
    assert isinstance(step, Case)
    assert [size % 2 for size in step.shape] == [1]
    with pytest.raises(Finding):
        PROPERTIES["exact"].judge(Bench(sim, Uneven(), bench_space()), (step,))
    assert words(result, "RS-EXACT-1", "RS-LAYOUT-6") == ["failed", "passed"]


def bench_space() -> Any:
    from reshard_conformance.generate.cases import Space

    return Space()


def test_a_run_ends_early_after_many_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard_conformance.run.suite.MAX_FAILURES", 1)
    result = suite.run_suite(Uneven())
    assert result.stopped
    assert result.line.endswith("1 failure; stopped early")


def test_unsupported_inside_the_claim_is_a_failure() -> None:
    result = suite.run_suite(Modest())
    assert result.exit_code == 1
    assert {failure.verdict for failure in result.failures} == {"unsupported"}


def test_a_waiver_excuses_what_it_names() -> None:
    waiver = Waiver("RS-EXACT-2", "too wide", "https://example.org/1", date(2999, 1, 1), "no such type there")
    result = suite.run_suite(Modest(), waivers=[waiver])
    waived = [failure for failure in result.failures if failure.waiver is waiver]
    assert {failure.prop for failure in waived} == {"exact"}  # the others do not show RS-EXACT-2
    assert len(result.open) == len(result.failures) - 1


def test_only_the_named_profiles_are_judged() -> None:
    result = suite.run_suite(Narrow(Level.L3, Profile.CORE, Profile.LIFECYCLE), profiles=(Profile.LIFECYCLE,))
    assert {tally.profile for tally in result.tallies.values()} == {Profile.LIFECYCLE}
    assert result.line.startswith("certified: golden 0.1.0 lifecycle over ")


def test_a_claim_that_nothing_shows_is_not_in_the_certificate() -> None:
    result = suite.run_suite(Narrow(Level.L3, Profile.CORE, Profile.FAULTS))
    assert result.line.startswith("certified: golden 0.1.0 core L3 over ")


def test_nothing_is_certified_where_nothing_can_be_shown() -> None:
    result = suite.run_suite(Narrow(Level.L3, Profile.CORE, Profile.FAULTS), profiles=(Profile.FAULTS,))
    assert result.exit_code == 1
    assert "none of these worlds shows any of the profiles" in result.line


def test_gloo_is_run_beside_sim() -> None:
    result = suite.run_suite("golden", ("gloo", "sim"), profiles=None, jobs=2, sizes=(3,))
    assert set(result.layouts) == {"gloo", "sim"}
    assert result.open == []
    assert all(tally.scripts for (world, name), tally in result.tallies.items() if name != "models")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"worlds": ("moon",)}, "world 'moon' is not known"),
        ({"worlds": ("gloo",)}, "world 'gloo' is not claimed"),
        ({"profiles": (Profile.BATCH,)}, "profile 'batch' is not claimed; --profiles can name core"),
        ({"effort": "heroic"}, "effort 'heroic' is not known"),
        ({"sizes": (99,)}, "world 'sim' has 1 to 64 ranks at L3"),
        ({"sizes": ()}, "world 'sim' has 1 to 64 ranks at L3"),
    ],
)
def test_a_run_that_cannot_be_says_why(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        suite.run_suite(Narrow(Level.L3), **asked)


def test_an_object_cannot_be_judged_in_other_processes() -> None:
    with pytest.raises(SuiteError, match="loads an implementation by name"):
        suite.run_suite(Narrow(Level.L3, worlds=("gloo",)), ("gloo",))


def test_disjoint_levels_need_two_ranks() -> None:
    with pytest.raises(SuiteError, match="2 to 64 ranks at L0"):
        suite.run_suite(Narrow(Level.L0), sizes=(1,))


def test_an_unknown_implementation_is_an_error_of_the_registry() -> None:
    with pytest.raises(registry.RegistryError, match="not known"):
        suite.run_suite("nobody")


def test_a_worker_that_dies_is_a_fault_of_the_suite(plugins: str) -> None:
    with pytest.raises(WorkerError, match="died with exit code 3"):
        suite.run_suite("strange:dying", jobs=2)


def test_failures_are_read_back_by_load(tmp_path: Any) -> None:
    from reshard_conformance.report.files import write_failures

    result = suite.run_suite(Uneven())
    write_failures(result.failures, tmp_path)
    for failure in result.failures:
        (script,) = load(tmp_path / failure.file)
        assert len(script) == len(failure.script)
