"""Communicators made over a base: when it is split, who meets in each split, and the release of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from restripe import Layout, Mesh
from restripe.group import communicators as module
from restripe.group.communicators import SIDE_STREAM_BYTES, Communicators, release_all
from restripe.transport.address_adapter import AddressAdapter

CPU = torch.device("cpu")
ROWS = Layout(Mesh((2, 2), (1, 2, 0, 3)), (Shard(0), Replicate()))


@dataclass
class FakeCommunicator:
    """A communicator that records its splits and its release, and fails where `fails` says so."""

    name: str
    log: list[str] = field(default_factory=list)
    rank: int = 0
    fails: tuple[str, ...] = ()
    splits: list[tuple[int | None, int]] = field(default_factory=list)
    device: torch.device = CPU

    def split(self, color: int | None, key: int) -> FakeCommunicator:
        self.splits.append((color, key))
        return type(self)(f"{self.name}.{len(self.splits)}", self.log, key)

    def finalize(self) -> None:
        self._record("finalize")

    def destroy(self) -> None:
        self._record("destroy")

    def abort(self) -> None:
        self._record("abort")

    def _record(self, verb: str) -> None:
        self.log.append(f"{verb} {self.name}")
        if verb in self.fails:
            raise OSError(f"{verb} {self.name}")


class FakeAddressCommunicator(FakeCommunicator):
    """A communicator that takes addresses."""

    def p2p(self, sends: Any, receives: Any) -> Any:
        raise NotImplementedError

    collectives = copies = p2p


def make_communicators(owned: bool = True, **changes: Any) -> tuple[Communicators, Any]:
    base: Any = FakeCommunicator("base", **changes)
    return Communicators(base, owned=owned), base


@pytest.mark.requirement("RS-UPSTREAM-11")
@pytest.mark.parametrize(
    ("rank", "color_and_key"), [(1, (0, 0)), (2, (0, 1)), (0, (1, 0)), (3, (1, 1)), (4, (2, 0)), (9, (2, 0))]
)
def test_a_rank_is_split_by_its_replica_group_and_its_index_there(rank: int, color_and_key: tuple[int, int]) -> None:
    communicators, base = make_communicators(rank=rank)
    assert communicators.replicas(ROWS) is not None
    assert base.splits == [color_and_key]


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_the_base_is_split_once_for_a_set_of_replica_groups() -> None:
    communicators, base = make_communicators(rank=4)
    same = [ROWS, Layout(Mesh((2, 2), (1, 2, 0, 3)), (Shard(1), Replicate()))]
    assert not communicators.has_split(ROWS)
    assert len({id(communicators.replicas(layout)) for layout in same}) == 1
    assert all(communicators.has_split(layout) for layout in same)
    other = Layout(Mesh((2, 2), (1, 2, 3, 0)), (Shard(0), Replicate()))
    assert not communicators.has_split(other)
    communicators.replicas(other)
    assert len(base.splits) == 2
    assert communicators.live == 3  # those of the leftover colors too


def test_the_endpoints_of_a_program_have_one_communicator_for_each_split_in_order() -> None:
    communicators, base = make_communicators()
    other = Layout(Mesh((2, 2), (1, 2, 3, 0)), (Shard(0), Replicate()))
    endpoints = communicators.endpoints([other, ROWS])
    assert len(base.splits) == 2
    assert endpoints.replicas == [communicators.replicas(other), communicators.replicas(ROWS)]
    assert endpoints.replicas[0] is not endpoints.replicas[1]
    assert endpoints.device == CPU
    assert endpoints.side_stream is None
    assert communicators.endpoints([]).messages is endpoints.messages


def test_a_transport_that_takes_addresses_is_used_itself_and_another_one_by_an_adapter() -> None:
    base: Any = FakeAddressCommunicator("base")
    communicators = Communicators(base, owned=False)
    assert communicators.endpoints([]).messages is base
    assert isinstance(communicators.replicas(ROWS), FakeAddressCommunicator)
    communicators, base = make_communicators()
    assert isinstance(communicators.endpoints([]).messages, AddressAdapter)
    assert isinstance(communicators.replicas(ROWS), AddressAdapter)


@pytest.mark.requirement("RS-CACHE-7")
@pytest.mark.parametrize("owned", [True, False])
def test_communicators_are_released_last_made_first(owned: bool) -> None:
    communicators, base = make_communicators(owned)
    communicators.replicas(ROWS)
    assert communicators.live == 1 + owned
    release_all([communicators], waiting=True)
    names = ["base.1", "base"] if owned else ["base.1"]
    assert base.log == [f"{verb} {name}" for name in names for verb in ("finalize", "destroy")]
    assert communicators.live == 0
    assert not communicators.has_split(ROWS)
    release_all([communicators], waiting=True)
    assert len(base.log) == 2 * len(names)


def test_a_release_that_does_not_wait_aborts() -> None:
    communicators, base = make_communicators()
    communicators.replicas(ROWS)
    release_all([communicators], waiting=False)
    assert base.log == ["abort base.1", "abort base"]


def test_communicators_for_a_graph_have_all_ranks_in_order_and_splits_of_their_own() -> None:
    communicators, base = make_communicators(owned=False, rank=3)
    for_graph = communicators.for_graph()
    assert base.splits == [(0, 3)]
    assert for_graph.base is not base
    assert (communicators.live, for_graph.live) == (0, 1)
    for_graph.replicas(ROWS)
    assert not communicators.has_split(ROWS)
    release_all([communicators], waiting=True)
    assert base.log == []
    release_all([for_graph], waiting=True)
    assert base.log == ["finalize base.1.1", "destroy base.1.1", "finalize base.1", "destroy base.1"]


def test_a_transport_whose_split_gives_nothing_for_a_graph_is_an_error_with_the_rank() -> None:
    communicators, base = make_communicators(rank=3)
    base.split = lambda color, key: None
    with pytest.raises(RuntimeError, match="rank 3: the transport's split gave no communicator for color 0"):
        communicators.for_graph()


@pytest.mark.parametrize("verb", ["finalize", "destroy"])
def test_after_a_failing_release_the_others_are_aborted_and_the_first_failure_is_raised(verb: str) -> None:
    log: list[str] = []
    several = [
        Communicators(FakeCommunicator(name, log, fails=(verb, "abort") if name in "bc" else ()), owned=True)  # type: ignore[arg-type]
        for name in "abcd"
    ]
    with pytest.raises(OSError, match=f"^{verb} b$"):
        release_all(several, waiting=True)
    failed = ["finalize b", "abort b"] if verb == "finalize" else ["finalize b", "destroy b"]
    assert log == ["finalize a", "destroy a", *failed, "abort c", "abort d"]
    assert not any(communicators.live for communicators in several)


def test_an_interrupt_releases_the_rest_too() -> None:
    class InterruptedCommunicator(FakeCommunicator):
        def finalize(self) -> None:
            raise KeyboardInterrupt

    log: list[str] = []
    both = [
        Communicators(kind(name, log), owned=True)  # type: ignore[arg-type]
        for kind, name in ((InterruptedCommunicator, "a"), (FakeCommunicator, "b"))
    ]
    with pytest.raises(KeyboardInterrupt):
        release_all(both, waiting=True)
    assert log == ["abort a", "abort b"]


@pytest.mark.parametrize(
    ("kind", "least_bytes"),
    [(FakeAddressCommunicator, [SIDE_STREAM_BYTES, 0]), (FakeCommunicator, [None, None])],
    ids=["addresses", "tensors"],
)
def test_on_a_device_that_takes_addresses_many_local_copies_have_a_second_stream_and_all_of_a_graph(
    monkeypatch: pytest.MonkeyPatch, kind: type[FakeCommunicator], least_bytes: list[int | None]
) -> None:
    monkeypatch.setattr(module, "streams_of", lambda device: object())
    monkeypatch.setattr(module, "SideStream", lambda streams, device, least: least)
    base: Any = kind("base")
    communicators = Communicators(base, owned=False)
    side_streams: list[Any] = [one.endpoints([]).side_stream for one in (communicators, communicators.for_graph())]
    assert side_streams == least_bytes
