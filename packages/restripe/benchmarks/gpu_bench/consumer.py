"""Refits as their callers make them: tensor by tensor, with a mesh class of their own, lists of placements, new references."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from gpu_bench.moves import Call, PreparedMove, UnsupportedRowError, call_all
from gpu_bench.raw import RankSchedule, RawTransport
from gpu_bench.routes import ReplicaStrategy, route
from gpu_bench.rows import ConsumerRow, Ranks, RowTensors
from restripe import Layout, Mesh
from restripe.analysis.mapping import Move
from restripe.bench.transfers import BenchError

FOREIGN_MESH, OWN_MESH, RAW_EACH = "drop-in, foreign mesh", "drop-in, restripe.Mesh", "raw each"
STEP_TENSORS = 256  # between two waits for a shared GPU; CUDA queues about a thousand launches

Side = tuple[Any, Any]  # mesh and placements, as they are passed


class ForeignMesh:
    """A mesh class that is none of restripe's: what the published callers pass."""

    def __init__(self, shape: Sequence[int], ranks: Sequence[int]) -> None:
        self.mesh = self._mesh = torch.tensor(ranks).reshape(*shape)
        self.ndim = self.mesh.ndim


class ForeignReference:
    """A distributed tensor by its global shape and this rank's part."""

    def __init__(self, local: torch.Tensor, shape: torch.Size) -> None:
        self._local_tensor, self.shape, self.dtype, self.device = local, shape, local.dtype, local.device


def foreign_side(side: Layout, members: Sequence[int]) -> Side:
    """Return a layout in ranks of the group, by a foreign mesh and a list of placements."""
    ranks = [members.index(rank) for rank in side.mesh.ranks]
    return ForeignMesh(side.mesh.shape, ranks), list(side.placements)


def own_side(side: Layout, members: Sequence[int]) -> Side:
    """Return a layout in ranks of the group, by a restripe.Mesh and a tuple of placements."""
    return Mesh(side.mesh.shape, tuple(members.index(rank) for rank in side.mesh.ranks)), side.placements


class _Tensor(NamedTuple):
    """A tensor as its caller knows it."""

    name: str
    shape: torch.Size
    src: Side
    dst: Side


@dataclass(frozen=True)
class ConsumerCalls:
    """A loop over the tensors that calls a function with the drop-in's signature.

    Args:
        function, clear: as the two names of `restripe.xferdtensor_python`.
        connect: makes the process group of these ranks; collective among them.
        make_side: makes the mesh and placements that are passed.
    """

    name: str
    function: Callable[..., object]
    clear: Callable[[Any], object]
    connect: Callable[[str, Ranks], Any]
    make_side: Callable[[Layout, Sequence[int]], Side]
    _groups: dict[Ranks, Any] = field(default_factory=dict, repr=False)

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        row = _consumer_row(tensors)
        steps: list[Call] = []
        streams = _Streams(tensors)
        for stage, members in enumerate(row.groups):
            if tensors.rank in members:
                group = self._group(members)
                arguments = self._arguments(row, stage, members)
                steps += [self._step(tensors, part, group, streams.of(stage)) for part in _parts(arguments)]
        return _prepared(streams, steps)

    def _group(self, members: Ranks) -> Any:
        """Return the group of these ranks; what it cached in another row is cleared."""
        if members in self._groups:
            self.clear(self._groups[members])
        else:
            self._groups[members] = self.connect(self.name, members)
        return self._groups[members]

    def _arguments(self, row: ConsumerRow, stage: int, members: Ranks) -> list[_Tensor]:
        """Return what is known of each tensor of a stage before the refit."""
        shared: dict[Layout, Side] = {}

        def side_of(side: Layout) -> Side:
            if not row.shared_meshes:
                return self.make_side(side, members)
            if side not in shared:
                shared[side] = self.make_side(side, members)
            return shared[side]

        return [
            _Tensor(move.name, torch.Size(move.shape), side_of(move.src), side_of(move.dst))
            for _, move in row.stage_moves(stage)
        ]

    def _step(self, tensors: RowTensors, arguments: Sequence[_Tensor], group: Any, stream: Any) -> Call:
        sources, destinations, function = tensors.sources, tensors.destinations, self.function

        def step() -> None:
            with _on_stream(stream):
                for name, shape, (src_mesh, src_placements), (dst_mesh, dst_placements) in arguments:
                    source, destination = sources.get(name), destinations.get(name)
                    src = None if source is None else ForeignReference(source, shape)
                    dst = None if destination is None else ForeignReference(destination, shape)
                    function(src, src_mesh, src_placements, dst, dst_mesh, dst_placements, group, stream)

        return step


@dataclass(frozen=True)
class ConsumerRaw:
    """A loop over the tensors by hand: sends and receives in a group a tensor, put together beforehand.

    Args:
        connect: makes the transport of these ranks; collective among them.
    """

    connect: Callable[[str, Ranks], RawTransport]
    name: str = RAW_EACH
    _transports: dict[Ranks, RawTransport] = field(default_factory=dict, repr=False)

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        row = _consumer_row(tensors)
        streams, parts = _Streams(tensors), list[_RawPart]()
        for stage, members in enumerate(row.groups):
            if tensors.rank in members:
                if members not in self._transports:
                    self._transports[members] = self.connect(self.name, members)
                sender = self._transports[members], members, streams.of(stage)
                parts += [_RawPart(tensors, numbered, *sender) for numbered in _parts(row.stage_moves(stage))]

        def refresh() -> None:
            for part in parts:
                part.refresh()

        return _prepared(streams, [part.call for part in parts], refresh)


class _RawPart:
    """The raw calls of some tensors of a stage."""

    def __init__(
        self,
        tensors: RowTensors,
        numbered: Sequence[tuple[int, Move]],
        transport: RawTransport,
        members: Ranks,
        stream: Any,
    ) -> None:
        self._tensors, self._transport, self._members, self._stream = tensors, transport, members, stream
        self._routes = [(number, route(move, ReplicaStrategy.STRIPES, number)) for number, move in numbered]
        if any(path.replications for _, path in self._routes):
            raise UnsupportedRowError("replicas that share stripes are not sent one call a tensor")
        self._calls: list[Call] = []
        self.refresh()

    def refresh(self) -> None:
        """Put the calls together from where the tensors are now."""
        self._calls.clear()
        for number, path in self._routes:
            schedule = RankSchedule(self._tensors, self._transport, self._members)
            schedule.add(number, path, self._transport)
            self._calls += schedule.calls()

    def call(self) -> None:
        with _on_stream(self._stream):
            for call in self._calls:
                call()


class _Streams:
    """The streams of a rank: a receiver has one a stage, a sender stays on the current one. None on the CPU."""

    def __init__(self, tensors: RowTensors) -> None:
        self._current: Any = torch.cuda.current_stream() if tensors.device.type == "cuda" else None
        self._receives = bool(tensors.destinations)
        self._by_stage: dict[int, Any] = {}

    def of(self, stage: int) -> Any:
        """Return the stream of a stage."""
        if self._current is None or not self._receives:
            return self._current
        if stage not in self._by_stage:
            self._by_stage[stage] = torch.cuda.Stream()
        return self._by_stage[stage]

    def fork(self) -> None:
        """Let every stage come after what is on the current stream."""
        for stream in self._by_stage.values():
            stream.wait_stream(self._current)

    def join(self) -> None:
        """Let what is enqueued on the current stream from now on come after every stage."""
        for stream in self._by_stage.values():
            self._current.wait_stream(stream)


def check_upstream(name: str) -> None:
    """Raise BenchError where there is no module of this name."""
    try:
        missing = importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        missing = True
    if missing:
        raise BenchError(f"expected a module on sys.path as --upstream, such as package.module, got {name!r}")


def upstream_names(name: str) -> tuple[Callable[..., object], Callable[[Any], object]]:
    """Return the function that restripe replaces, and the one that clears its caches."""
    module = importlib.import_module(name)
    return module.xferdtensor_python_impl, module.clear_xferdtensor_python_caches


def _consumer_row(tensors: RowTensors) -> ConsumerRow:
    if not isinstance(tensors.row, ConsumerRow):
        raise UnsupportedRowError("plays the rows of a consumer alone")
    return tensors.row


def _prepared(streams: _Streams, steps: Sequence[Call], refresh: Call | None = None) -> PreparedMove:
    """Return the steps as one move between a fork and a join of the streams."""
    ordered = (streams.fork, *steps, streams.join)
    move = PreparedMove(call_all(ordered), steps=ordered)
    return move if refresh is None else replace(move, refresh=refresh)


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[start : start + STEP_TENSORS] for start in range(0, len(items), STEP_TENSORS)]


def _on_stream(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
