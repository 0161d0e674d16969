"""Communicators made over a base: when it is split, which ranks meet, and that all are released whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from restripe import Layout, Mesh
from restripe.group import communicators as module
from restripe.group.communicators import Links, release

CPU = torch.device("cpu")
ROWS = Layout(Mesh((2, 2), (1, 2, 0, 3)), (Shard(0), Replicate()))


@dataclass
class Recorder:
    """A communicator that notes its splits and its end, and fails at what it is told to."""

    name: str
    log: list[str] = field(default_factory=list)
    rank: int = 0
    fails: tuple[str, ...] = ()
    splits: list[tuple[int | None, int]] = field(default_factory=list)
    device: torch.device = CPU

    def split(self, color: int | None, key: int) -> Recorder:
        self.splits.append((color, key))
        return Recorder(f"{self.name}.{len(self.splits)}", self.log, key)

    def finalize(self) -> None:
        self._note("finalize")

    def destroy(self) -> None:
        self._note("destroy")

    def abort(self) -> None:
        self._note("abort")

    def _note(self, verb: str) -> None:
        self.log.append(f"{verb} {self.name}")
        if verb in self.fails:
            raise OSError(f"{verb} {self.name}")


def links(owned: bool = True, **given: Any) -> tuple[Links, Any]:
    base: Any = Recorder("base", **given)
    return Links(base, owned=owned), base


@pytest.mark.requirement("RS-UPSTREAM-11")
@pytest.mark.parametrize(
    ("rank", "seat"), [(1, (0, 0)), (2, (0, 1)), (0, (1, 0)), (3, (1, 1)), (4, (2, 0)), (9, (2, 0))]
)
def test_a_rank_s_color_is_its_replica_group_s_and_its_key_its_place_there(rank: int, seat: tuple[int, int]) -> None:
    made, base = links(rank=rank)
    assert made.replicas(ROWS) is not None
    assert base.splits == [seat]


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_the_base_is_split_once_for_a_set_of_replica_groups() -> None:
    made, base = links(rank=4)
    same = [ROWS, Layout(Mesh((2, 2), (1, 2, 0, 3)), (Shard(1), Replicate()))]
    assert not made.known(ROWS)
    assert len({id(made.replicas(layout)) for layout in same}) == 1
    assert all(made.known(layout) for layout in same)
    other = Layout(Mesh((2, 2), (1, 2, 3, 0)), (Shard(0), Replicate()))
    assert not made.known(other)
    made.replicas(other)
    assert len(base.splits) == 2
    assert made.live == 3  # the leftover colors' too


@pytest.mark.requirement("RS-CACHE-7")
@pytest.mark.parametrize("owned", [True, False])
def test_what_was_made_is_released_last_first(owned: bool) -> None:
    made, base = links(owned)
    made.replicas(ROWS)
    assert made.live == 1 + owned
    release([made], waiting=True)
    names = ["base.1", "base"] if owned else ["base.1"]
    assert base.log == [f"{verb} {name}" for name in names for verb in ("finalize", "destroy")]
    assert made.live == 0
    assert not made.known(ROWS)
    release([made], waiting=True)
    assert len(base.log) == 2 * len(names)


def test_nothing_is_waited_for_where_ranks_are_out_of_step() -> None:
    made, base = links()
    made.replicas(ROWS)
    release([made], waiting=False)
    assert base.log == ["abort base.1", "abort base"]


def test_a_twin_has_all_ranks_in_order_and_communicators_of_its_own() -> None:
    made, base = links(owned=False, rank=3)
    twin = made.twin()
    assert base.splits == [(0, 3)]
    assert twin.base is not base
    assert (made.live, twin.live) == (0, 1)
    twin.replicas(ROWS)
    assert not made.known(ROWS)
    release([made], waiting=True)
    assert base.log == []
    release([twin], waiting=True)
    assert base.log == ["finalize base.1.1", "destroy base.1.1", "finalize base.1", "destroy base.1"]


@pytest.mark.parametrize("verb", ["finalize", "destroy"])
def test_one_failure_keeps_nothing_from_being_released_and_nobody_is_waited_for_after_it(verb: str) -> None:
    log: list[str] = []
    several = [Links(Recorder(name, log, fails=(verb, "abort") if name in "bc" else ()), owned=True) for name in "abcd"]  # type: ignore[arg-type]
    with pytest.raises(OSError, match=f"^{verb} b$"):
        release(several, waiting=True)
    failed = ["finalize b", "abort b"] if verb == "finalize" else ["finalize b", "destroy b"]
    assert log == ["finalize a", "destroy a", *failed, "abort c", "abort d"]
    assert not any(one.live for one in several)


def test_an_interrupt_releases_the_rest_too() -> None:
    class Waiting(Recorder):
        def finalize(self) -> None:
            raise KeyboardInterrupt

    log: list[str] = []
    both = [Links(kind(name, log), owned=True) for kind, name in ((Waiting, "a"), (Recorder, "b"))]  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        release(both, waiting=True)
    assert log == ["abort a", "abort b"]


def test_what_stays_goes_aside_from_a_bound_on_and_always_for_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "streams_of", lambda device: object())
    monkeypatch.setattr(module, "Aside", lambda streams, device, least: least)
    base: Any = Recorder("base")
    links = Links(base, owned=False)
    bounds: list[Any] = [links.aside, links.twin().aside]
    assert bounds == [module.ASIDE, 0]
