"""One tensor's move as tables: facts, every message, and every fan-out. Needs the extra `cli`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.table import Table

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import told, written
from restripe.analysis.summary import amount, balance, holders, predicted
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import Members, busiest_peers, contiguous, numel, plans, rebuilding, traffic, writes
from restripe.layout.chunked import Region
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan


@dataclass(frozen=True)
class Explained:
    """One tensor's plans, on all ranks of both meshes, and what crosses."""

    move: Move
    world: Mapping[int, RankPlan]
    totals: Totals

    @classmethod
    def of(cls, move: Move, turn: int = 0) -> Explained:
        """Plan and check the move.

        Raises:
            PlanFaultError: the plans do not fit together.
            ReshardError: the layouts do not fit the tensor.
        """
        world, totals = plans(move.src, move.dst, move.shape, turn), Totals()
        totals.add(move, traffic(world))
        return cls(move, world, totals)

    @property
    def reason(self) -> str:
        """Why the plan has its shape."""
        return next(iter(self.world.values())).reason.value

    def bytes(self, region: Region) -> int:
        """The bytes of a region."""
        return self.move.dtype.itemsize * numel(region)


def facts(one: Explained, rates: Rates) -> Table:
    """What is moved, how, how evenly, and for how long."""
    move, totals = one.move, one.totals
    shape = " x ".join(map(str, move.shape)) or "0 dims"
    width = move.dtype.itemsize
    table = Table(show_header=False, box=None)
    lines = {
        "tensor": f"{move.name}: {shape}, {str(move.dtype).removeprefix('torch.')}, {amount(totals.size)}",
        "source": side(move.src),
        "destination": side(move.dst),
        "plan": one.reason,
        "between ranks": f"{amount(totals.crossed)} in {sum(totals.messages.values()):,} messages; "
        f"a rank has at most {busiest_peers(one.world)} peers",
        "fan-out": fan_out(one),
        "staging": f"at most {amount(width * next(iter(one.world.values())).staging)} on a rank",
        "holders": holders(totals, rates),
        "balance": balance(totals),
        "predicted": predicted(totals, rates),
    }
    for name, text in lines.items():
        table.add_row(f"[bold]{name}", text)
    return table


def side(layout: Layout) -> str:
    """A layout with its ranks and how many hold each part."""
    held = "one rank holds each part" if layout.replicas == 1 else f"{layout.replicas} ranks hold each part"
    return f"{written(layout)} on ranks {told(layout.mesh.ranks)}; {held}"


def fan_out(one: Explained) -> str:
    """How replica groups complete their shards."""
    groups = [members for members in rebuilding(one.world) if len(members) > 1]
    if not groups:
        return "none"
    kinds = sorted({each.fan_out.kind.value for each in one.world.values() if each.fan_out is not None})
    return (
        f"{' and '.join(kinds)} in {len(groups)} groups of {len(groups[0])}; brings {amount(one.totals.spread)} in all"
    )


def messages(one: Explained, most: int) -> Table:
    """Who sends what to whom; at most so many rows."""
    table = Table(title="messages", title_justify="left", caption_justify="left")
    for head in ("from", "to", "part of the tensor", "bytes", "packed", "unpacked"):
        table.add_column(head, justify="left" if head.startswith("part") else "right")
    rows = list(_rows(one))
    for row in rows[:most]:
        table.add_row(*row)
    if len(rows) > most:
        table.caption = f"{len(rows) - most:,} more; --messages {len(rows)} shows all"
    return table


def _rows(one: Explained) -> Iterator[tuple[str, ...]]:
    for rank, planned in one.world.items():
        for region in planned.copies:
            yield str(rank), "itself", spans(region), f"{one.bytes(region):,}", "", ""
        for message in planned.sends:
            shards = planned.source, one.world[message.peer].destination
            staged = ["" if shard is None or contiguous(message.region, shard) else "yes" for shard in shards]
            yield str(rank), str(message.peer), spans(message.region), f"{one.bytes(message.region):,}", *staged


def stripes(one: Explained, most: int) -> Table:
    """What each member of a replica group brings to its fan-out; at most so many groups."""
    table = Table(title="fan-out", title_justify="left", caption_justify="left")
    for head in ("group", "shard", "brought by each member"):
        table.add_column(head)
    groups = [members for members in rebuilding(one.world) if len(members) > 1]
    for members in groups[:most]:
        shard = one.world[members[0]].destination or ()
        table.add_row(told(members), spans(shard), _brought(one, members))
    if len(groups) > most:
        table.caption = f"{len(groups) - most:,} more groups; --messages {len(groups)} shows all"
    return table


def _brought(one: Explained, members: Members) -> str:
    """For each member the rows of dim 0 that it received, or nothing."""
    shares = {rank: writes(one.world[rank]) for rank in members}
    return "; ".join(f"{rank}: {amount(sum(map(one.bytes, share)))}" for rank, share in shares.items() if share)


def spans(region: Region) -> str:
    """A region as Python slices; several intervals of a dim are joined by +."""
    if not all(region):
        return "empty"
    return f"\\[{', '.join('+'.join(f'{lo}:{hi}' for lo, hi in intervals) for intervals in region)}]"
