"""How an implementation is named, and what is said when it is not."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from reshard_conformance import registry
from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.registry import RegistryError, known, load, place_of, world
from reshard_conformance.worlds.nccl import missing_requirement


def test_golden_is_built_in() -> None:
    golden = load("golden")
    assert golden.name == "golden"
    assert golden.claims.level == Level.L3
    assert golden.claims.profiles >= {Profile.CORE}


@pytest.mark.parametrize("name", [None, ""])
def test_no_name_is_an_error_that_says_what_to_type(name: str | None) -> None:
    with pytest.raises(RegistryError, match=r"no implementation is named: type --implementation NAME, .*golden"):
        load(name)


def test_an_unknown_name_is_an_error_that_says_what_to_type() -> None:
    with pytest.raises(
        RegistryError, match=r"'silver' is not known: type --implementation NAME, .*package\.module:att"
    ):
        load("silver")


def test_an_entry_point_is_a_name(plugins: str) -> None:
    assert known()["toy"] == place_of("toy") == "toy_reshard:implementation"
    assert load("toy").name == "toy"


def test_an_entry_point_does_not_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name, "toy_reshard:implementation", registry.GROUP) for name in ("golden", "other")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])
    assert known()["other"] == "toy_reshard:implementation"
    assert load("golden").name == "golden"


def test_a_place_is_a_name(plugins: str) -> None:
    assert load("toy_reshard:implementation") is load("toy")
    assert load("strange:probe").name == "probe"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.such.module:thing", "module 'no.such.module' cannot be imported"),
        ("strange:thing", "'strange' has no attribute 'thing'"),
        ("strange:probe.thing", "'strange' has no attribute 'probe.thing'"),
        ("strange:row", "lacks name, version, claims, reshard, clear_caches, error_kind of the contract"),
    ],
)
def test_a_place_that_leads_nowhere_is_an_error(plugins: str, name: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        load(name)


def test_claims_are_the_contracts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    members: dict[str, object] = dict.fromkeys(registry.MEMBERS, "all")
    monkeypatch.setattr(registry, "locate", lambda place: SimpleNamespace(**members))
    with pytest.raises(RegistryError, match=r"expected its claims to be a contract\.Claims"):
        load("a:b")


@pytest.mark.parametrize("name", registry.WORLDS)
def test_worlds_have_names(name: str) -> None:
    if name == "nccl" and missing_requirement():
        with pytest.raises(RegistryError, match=r"world 'nccl' needs (a GPU|nccl4py)"):
            world(name)
        return
    made = world(name)
    assert made.name == name
    made.close()


def test_an_unknown_world_is_an_error_that_says_what_to_type() -> None:
    with pytest.raises(RegistryError, match="world 'mars' is not known: type --world with one of sim, gloo, nccl"):
        world("mars")


def test_no_implementation_is_imported_before_it_is_named() -> None:
    code = "import sys, reshard_conformance.run.replay; print([name for name in sys.modules if name.startswith('restripe')])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("level", "profiles"), [(3, frozenset({Profile.CORE})), (Level.L3, frozenset({"core"})), ("L3", frozenset())]
)
def test_claims_are_made_of_levels_and_profiles(level: Level, profiles: frozenset[Profile]) -> None:
    with pytest.raises(TypeError, match=r"^Claims\."):
        Claims(level, profiles)
