"""What the specification only advises: found and told, but it does not stand against a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from reshard_conformance.generate.cases import Space
from reshard_conformance.mutants.calls import Call, Refusal
from reshard_conformance.mutants.plain import Message, Plain
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.search.bench import Bench, Finding, search
from reshard_conformance.worlds.sim import SimWorld


class Mute(Plain):
    """Says nothing of what is wrong."""

    def compare(self, records: Sequence[bytes]) -> None:
        try:
            super().compare(records)
        except Refusal as refusal:
            raise Refusal(refusal.kind, "no") from None


class Favourite(Plain):
    """Always asks the first holder."""

    def holder(self, holders: Sequence[int], receiver: int, number: int) -> int:
        return super().holder(holders, receiver, 0)


class Wrong(Favourite):
    """And moves nothing."""

    def make_plan(self, call: Call, turn: int) -> list[Message]:
        return []


def found(world: SimWorld, kind: type[Plain], name: str) -> Finding | None:
    with closing(Bench(world, kind(), Space(), make_implementation=kind)) as bench:
        return search(PROPERTIES[name], bench, 1, 1, 40)


@pytest.mark.parametrize(("kind", "name"), [(Mute, "says-why"), (Favourite, "turns")])
def test_what_is_only_advised_is_found_as_such(sim: SimWorld, kind: type[Plain], name: str) -> None:
    finding = found(sim, kind, name)
    assert finding is not None
    assert finding.advisory
    assert found(sim, Plain, name) is None


def test_what_a_text_leaves_out_is_named(sim: SimWorld) -> None:
    finding = found(sim, Mute, "says-why")
    assert finding is not None
    assert "does not name a rank, source or destination" in finding.faults[0]


def test_wrong_bytes_are_more_than_advice_wherever_they_are_found(sim: SimWorld) -> None:
    finding = found(sim, Wrong, "turns")
    assert finding is not None
    assert not finding.advisory
