"""The quadratic planner: the whole world planned at once with nested loops, to judge the planner that never looks at it.

It knows nothing of restripe. A box is one half-open global interval a tensor dim; `()` is the box of a 0-dim tensor.
"""

from dataclasses import dataclass, field
from itertools import product
from math import prod

Box = tuple[tuple[int, int], ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """A mesh (its shape, its ranks in row-major order) and the tensor dim that each mesh dim shards, None: replicates."""

    mesh: Shape
    ranks: Shape
    shards: tuple[int | None, ...]

    def coordinates(self) -> dict[int, Shape]:
        return dict(zip(self.ranks, product(*map(range, self.mesh)), strict=True))


@dataclass(frozen=True)
class Group:
    """The ranks that own one nonempty box, in mesh order."""

    box: Box
    members: list[int]


@dataclass(frozen=True)
class Target:
    """What one rank receives before the fan-out: the whole of its shard, or a stripe of it."""

    receiver: int
    box: Box
    shard: Box


@dataclass(frozen=True)
class Transfer:
    """A box that goes from sender to receiver; a local copy where they are the same."""

    sender: int
    receiver: int
    box: Box


@dataclass
class WorldPlan:
    kind: str
    transfers: set[Transfer] = field(default_factory=set)
    fan_outs: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def chunk(interval: tuple[int, int], pieces: int, index: int) -> tuple[int, int]:
    """Piece `index` of an interval that torch.chunk cuts: all of one size but the last ones, which may be empty."""
    low, high = interval
    step = (high - low + pieces - 1) // pieces
    for _ in range(index):
        low = min(low + step, high)
    return low, min(low + step, high)


def owned(side: Side, coordinate: Shape, shape: Shape) -> Box:
    box = [(0, size) for size in shape]
    for pieces, index, dim in zip(side.mesh, coordinate, side.shards, strict=True):
        if dim is not None:
            box[dim] = chunk(box[dim], pieces, index)
    return tuple(box)


def volume(box: Box) -> int:
    return prod(high - low for low, high in box)


def meet(left: Box, right: Box) -> Box | None:
    """What both boxes hold, None when that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return both if all(low < high for low, high in both) else None


def groups(side: Side, shape: Shape) -> list[Group]:
    found: dict[Shape, Group] = {}
    for rank, coordinate in side.coordinates().items():
        box = owned(side, coordinate, shape)
        key = tuple(c for c, dim in zip(coordinate, side.shards, strict=True) if dim is not None)
        if volume(box):
            found.setdefault(key, Group(box, [])).members.append(rank)
    return list(found.values())


def contiguous(box: Box, parent: Box) -> bool:
    """Whether the box is one run of a row-major parent: after the first dim longer than 1, every dim is whole."""
    lengths = [high - low for low, high in box]
    first = next((dim for dim, length in enumerate(lengths) if length > 1), len(box))
    return all(box[dim] == parent[dim] for dim in range(first + 1, len(box)))


def grid(destinations: list[Group]) -> Shape:
    """Into how many stripes each dim of a shard is cut: down to length 1, dim by dim, until every member could have one."""
    found, left = [], len(destinations[0].members)
    for dim in range(len(destinations[0].box)):
        longest = max(group.box[dim][1] - group.box[dim][0] for group in destinations)
        found.append(min(longest, left))
        left = left // longest if longest <= left else 1
    return tuple(found)


def stripes(group: Group, counts: Shape) -> list[Target]:
    """The shard cut into stripes as torch.chunk cuts, the last dim's next to each other; a member may be left without."""
    cuts = [
        [chunk(interval, count, index) for index in range(count)]
        for interval, count in zip(group.box, counts, strict=True)
    ]
    targets = [Target(rank, box, group.box) for rank, box in zip(group.members, product(*cuts), strict=False)]
    return [target for target in targets if volume(target.box)]


def fallback(sources: list[Group], destinations: list[Group], counts: Shape) -> str | None:
    """Why a representative receives for all; None where every member receives its stripe."""
    if prod(counts) == 1:
        return "scalar"
    for source in sources:
        for group in destinations:
            for target in stripes(group, counts):
                box = meet(source.box, target.box)
                if box is not None and not contiguous(box, source.box) and not contiguous(box, target.shard):
                    return "staging"
    return None


def are_even(destinations: list[Group], counts: Shape) -> bool:
    """Whether every member of every group has a stripe, all of one length."""
    return prod(counts) == len(destinations[0].members) and not any(
        (high - low) % count for group in destinations for (low, high), count in zip(group.box, counts, strict=True)
    )


def is_local(src: Side, dst: Side) -> bool:
    """Whether the layouts alone, whatever the shape, leave every destination rank inside its own source shard."""
    if all(dim is None or size == 1 for size, dim in zip(src.mesh, src.shards, strict=True)):
        return set(dst.ranks) <= set(src.ranks)
    if (src.mesh, src.ranks) != (dst.mesh, dst.ranks):
        return False
    return all(is_prefix(cuts(src, dim), cuts(dst, dim)) for dim in set(src.shards) if dim is not None)


def cuts(side: Side, tensor_dim: int) -> list[int]:
    """The mesh dims that cut a tensor dim, left to right; one of size 1 cuts nothing."""
    return [m for m, dim in enumerate(side.shards) if dim == tensor_dim and side.mesh[m] > 1]


def is_prefix(head: list[int], whole: list[int]) -> bool:
    return whole[: len(head)] == head


def transfers(sources: list[Group], targets: list[Target], rotation: int) -> set[Transfer]:
    """Every source shard to every target that it meets; remote receivers take the holders in rotation."""
    found: set[Transfer] = set()
    for source in sources:
        meeting = [(target, box) for target in targets if (box := meet(source.box, target.box)) is not None]
        meeting.sort(key=lambda pair: [low for low, _ in pair[0].box])
        for t, (target, box) in enumerate(meeting):
            holder = source.members[(t + rotation) % len(source.members)]
            sender = target.receiver if target.receiver in source.members else holder
            found.add(Transfer(sender, target.receiver, box))
    return found


def local_plan(dst: Side, shape: Shape) -> WorldPlan:
    boxes = {rank: owned(dst, coordinate, shape) for rank, coordinate in dst.coordinates().items()}
    return WorldPlan("local", {Transfer(rank, rank, box) for rank, box in boxes.items() if volume(box)})


def judge(src: Side, dst: Side, shape: Shape, rotation: int = 0) -> WorldPlan:
    """What every rank of the world does, and by which rule: the kind bears the name of a restripe Reason."""
    if is_local(src, dst):
        return local_plan(dst, shape)
    if not prod(shape):
        return WorldPlan("empty")
    sources, destinations = groups(src, shape), groups(dst, shape)
    whole = [Target(group.members[0], group.box, group.box) for group in destinations]
    if all(len(group.members) == 1 for group in destinations):
        return WorldPlan("point", transfers(sources, whole, rotation))
    counts = grid(destinations)
    kind, targets, fan_out = fallback(sources, destinations, counts), whole, "broadcast"
    if kind is None:
        targets = [target for group in destinations for target in stripes(group, counts)]
        even = are_even(destinations, counts)
        kind, fan_out = ("striped", "all_gather") if even else ("ragged", "broadcast")
    fan_outs = {rank: (fan_out, tuple(group.members)) for group in destinations for rank in group.members}
    return WorldPlan(kind, transfers(sources, targets, rotation), fan_outs)
