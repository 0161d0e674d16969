"""The rows beside those of `restripe bench`, and a row's tensors on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.distributed.tensor import Shard

from restripe import Layout
from restripe.analysis.mapping import Degrees, Move, moves
from restripe.analysis.models import Parameter, parameters
from restripe.analysis.spelling import layout
from restripe.bench import transfers
from restripe.bench.transfers import DTYPE, GIB, MB34, MB262, Row, one_tensor_row

Shape = tuple[int, ...]
Ranks = tuple[int, ...]
SIZES = {"34 MB": MB34, "262 MB": MB262, "1 GiB": GIB}
#: Source and destination placements of the rows between disjoint meshes; those of two mesh dims are on 2 x n / 2 ranks.
PLACEMENTS = (
    ("S(0)", "S(0)"),
    ("S(0)", "S(1)"),
    ("S(1)", "S(0)"),
    ("S(0)", "R"),
    ("S(0)", "R,S(0)"),
    ("R", "S(0)"),
)
STAGE_LAYERS = range(14, 22)  # of 36: the last four layers of the front stage, and the first four of the other
_MULTIPLIERS = (-7046029254386353131, -4658895280553007687)  # odd, so that multiplying by them loses nothing


def rows(ranks: int) -> tuple[Row, ...]:
    """Return the rows of one or more tensors in one call on so many ranks, in the order of the tables."""
    return (*transfers.rows(ranks), *between_meshes(ranks))


def between_meshes(ranks: int) -> Iterator[Row]:
    """Yield the rows between disjoint meshes of several ranks, on four ranks and on eight."""
    if ranks == 4:
        yield from placement_rows(2, 2)
        yield model_row("TP2", "TP2")
        yield model_row("DP2", "TP2")
    if ranks == 8:
        yield from placement_rows(4, 4)
        yield model_row("TP4", "TP4")
        yield model_row("TP2xDP2", "TP4")
        yield model_row("DP4", "TP4")
        yield from placement_rows(2, 6)
        yield from placement_rows(6, 2)


def left_out(ranks: int) -> str:
    """Return a sentence on the rows that need another number of ranks; empty where none does."""
    if ranks == 8:
        return ""
    return (
        f"left out on {ranks} ranks: "
        + "2 to 2, which needs 4, and " * (ranks != 4)
        + "4 to 4, 2 to 6, 6 to 2 and consumer stages, which need 8"
    )


def placement_rows(sources: int, destinations: int) -> Iterator[Row]:
    """Yield the rows from the first ranks to those after them."""
    for src, dst in PLACEMENTS:
        if "," in dst and destinations == 2:
            continue  # 2 x 1 ranks, which is R
        mesh = f"2x{destinations // 2}" if "," in dst else f"{destinations}"
        for words, shape in SIZES.items():
            sides = layout(f"{sources}:{src}"), layout(f"{mesh}:{dst}", first=sources)
            yield one_tensor_row(f"{sources} to {destinations}, {src} to {dst}, {words}", shape, *sides, 12)


def model_row(train: str, generate: str) -> Row:
    """Return the 4B model from a trainer to a generator, in the layouts of these degrees of parallelism."""
    tensors = moves(parameters("qwen3-4b"), Degrees.of(train), Degrees.of(generate))
    return Row(f"model 4B, {train} to {generate}", tuple(tensors), 10)


@dataclass(frozen=True)
class ConsumerRow(Row):
    """A refit of many tensors, one after another, of which single refits are timed.

    Args:
        groups: the ranks of each pipeline stage's process group; a tensor goes over the group that has all of its ranks.
        fresh: whether the tensors of each refit are at other addresses, as temporary buffers are.
        shared_meshes: whether the tensors share mesh objects, or have one a tensor.
    """

    groups: tuple[Ranks, ...] = ((0, 1),)
    fresh: bool = False
    shared_meshes: bool = True

    def stage_moves(self, stage: int) -> list[tuple[int, Move]]:
        """Return the tensors of a stage, with their numbers in the row."""
        members = set(self.groups[stage])
        return [
            (number, move)
            for number, move in enumerate(self.tensors)
            if members.issuperset(move.src.mesh.ranks) and members.issuperset(move.dst.mesh.ranks)
        ]


def consumer_rows(ranks: int) -> Iterator[ConsumerRow]:
    """Yield the rows from rank 0 to rank 1, and on eight ranks that of two pipeline stages, each with its group and stream."""
    sides = layout("1:R"), layout("1:R", first=1)

    def point(name: str, tensors: Sequence[Parameter], repeats: int, *, fresh: bool = False) -> ConsumerRow:
        tensor_moves = tuple(Move(tensor.name, tensor.kind, tensor.shape, DTYPE, *sides) for tensor in tensors)
        return ConsumerRow(name, tensor_moves, repeats, fresh=fresh)

    dense, experts = parameters("qwen3-4b"), list(single_experts("qwen3-30b-a3b"))
    yield point("consumer 396", dense, 10)
    yield point("consumer 9000", experts[:9000], 5)
    yield point("consumer 18867", experts, 5)
    yield point("consumer 396 fresh", dense, 10, fresh=True)
    if ranks == 8:
        layers = [tensor for tensor in dense if tensor.layer in STAGE_LAYERS]
        staged = moves(dense, Degrees.of("PP2xTP2"), Degrees.of("TP4"))
        names = {tensor.name for tensor in layers}
        tensors = tuple(move for move in staged if move.name in names)
        groups = (0, 1, 4, 5, 6, 7), (2, 3, 4, 5, 6, 7)
        yield ConsumerRow("consumer stages", tensors, 10, groups=groups, shared_meshes=False)


def single_experts(model: str) -> Iterator[Parameter]:
    """Yield the parameters of a model with each expert's tensors on their own."""
    for tensor in parameters(model):
        if not tensor.expert:
            yield tensor
            continue
        for number in range(tensor.shape[0]):
            yield replace(tensor, name=f"{tensor.name}.{number}", shape=tensor.shape[1:], expert=False)


def shrink(row: ConsumerRow, divisor: int) -> ConsumerRow:
    """Return the row with sizes divided, at least 8 each, so that every rank still holds a part: as many calls, fewer bytes."""
    shapes = [tuple(max(8, size // divisor) for size in move.shape) for move in row.tensors]
    tensors = tuple(replace(move, shape=shape) for move, shape in zip(row.tensors, shapes, strict=True))
    return replace(row, tensors=tensors)


def noise_tensor(shape: Shape, device: torch.device) -> torch.Tensor:
    """Return a tensor of well-mixed bytes that follow from the index alone, alike on every device."""
    size = math.prod(shape) * DTYPE.itemsize
    words = torch.arange(1, -(-size // 8) + 1, dtype=torch.int64, device=device)
    words *= _MULTIPLIERS[0]
    words ^= words >> 31
    words *= _MULTIPLIERS[1]
    words ^= words >> 29
    return words.view(torch.uint8)[:size].view(DTYPE).view(shape)


def shard_of(tensor: torch.Tensor, side: Layout, rank: int) -> torch.Tensor | None:
    """Return the part of the global tensor that a rank holds, which must have elements; None outside the mesh."""
    coordinates = side.mesh.coordinates(rank)
    if coordinates is None:
        return None
    for placement, parts, coordinate in zip(side.placements, side.mesh.shape, coordinates, strict=True):
        if isinstance(placement, Shard):
            tensor = tensor.chunk(parts, placement.dim)[coordinate]
    return tensor


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's bytes, flat."""
    return tensor.view(-1).view(torch.uint8)


@dataclass
class RowTensors:
    """The tensors of a row on one rank, by name; only those that the rank has.

    The values are a part of the same noise for each tensor, an element further for each: what one tensor has to hold
    no other one may hold.
    """

    row: Row
    rank: int
    size: int
    device: torch.device
    sources: dict[str, torch.Tensor] = field(default_factory=dict)
    destinations: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        moves_of_row = self.row.tensors
        self._numbers = {move.name: number for number, move in enumerate(moves_of_row)}
        self._noise = noise_tensor((max(move.numel for move in moves_of_row) + len(moves_of_row),), self.device)
        for move in moves_of_row:
            values = self.global_values(move.name)
            source, expected = (shard_of(values, side, self.rank) for side in (move.src, move.dst))
            if source is not None:
                self.sources[move.name] = source.clone(memory_format=torch.contiguous_format)
            if expected is not None:
                self.destinations[move.name] = torch.empty(expected.shape, dtype=DTYPE, device=self.device)

    def global_values(self, name: str) -> torch.Tensor:
        """Return the values of a whole tensor."""
        number = self._numbers[name]
        move = self.row.tensors[number]
        return self._noise[number : number + move.numel].view(move.shape)

    def expected(self, name: str) -> torch.Tensor:
        """Return what the destination has to hold, on a rank that has it."""
        expected = shard_of(self.global_values(name), self.row.tensors[self._numbers[name]].dst, self.rank)
        if expected is None:
            raise KeyError(f"rank {self.rank} has no destination {name!r} in row {self.row.name!r}")
        return expected.contiguous()

    def fill_wrong(self) -> None:
        """Make every byte of the destinations wrong."""
        for name, destination in self.destinations.items():
            torch.bitwise_not(flat_bytes(self.expected(name)), out=flat_bytes(destination))

    def wrong_bytes(self) -> int:
        """Return how many bytes of the destinations are wrong."""
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for name, destination in self.destinations.items():
            wrong += (flat_bytes(destination) != flat_bytes(self.expected(name))).sum()
        return int(wrong)

    def renew(self) -> None:
        """Put tensors at other addresses in place of all, as a caller with temporary buffers does; destinations are empty."""
        for name, source in self.sources.items():
            self.sources[name] = source.clone()
        for name, destination in self.destinations.items():
            self.destinations[name] = torch.empty_like(destination)
