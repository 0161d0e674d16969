"""Tables of one tensor's move: facts, messages and fan-outs. Needs the extra `cli`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.table import Table

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import format_layout, format_ranks
from restripe.analysis.summary import describe_balance, describe_holders, describe_time, format_bytes
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import (
    Members,
    busiest_peers,
    checked_traffic,
    fan_out_groups,
    is_contiguous,
    numel,
    plan_all_ranks,
    written_regions,
)
from restripe.layout.chunked import Region
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan


@dataclass(frozen=True)
class ExplainedMove:
    """A tensor's move with the plans of all ranks of both meshes and the bytes that cross."""

    move: Move
    world: Mapping[int, RankPlan]
    totals: Totals

    @classmethod
    def of(cls, move: Move, rotation: int = 0) -> ExplainedMove:
        """Plan the move on all ranks, and check that the plans fit together.

        Raises:
            PlanFaultError: the plans do not fit together.
            ReshardError: the layouts do not fit the tensor.
        """
        world, totals = plan_all_ranks(move.src, move.dst, move.shape, rotation), Totals()
        totals.add(move, checked_traffic(world))
        return cls(move, world, totals)

    @property
    def reason(self) -> str:
        """The reason for which the planner chose this kind of plan."""
        return next(iter(self.world.values())).reason.value

    def region_bytes(self, region: Region) -> int:
        """Return the size of a region in bytes."""
        return self.move.dtype.itemsize * numel(region)


def facts_table(explained: ExplainedMove, rates: Rates) -> Table:
    """Return a table of the tensor, both layouts, the plan, its balance and its predicted time."""
    move, totals = explained.move, explained.totals
    shape = " x ".join(map(str, move.shape)) or "0 dims"
    width = move.dtype.itemsize
    table = Table(show_header=False, box=None)
    lines = {
        "tensor": f"{move.name}: {shape}, {str(move.dtype).removeprefix('torch.')}, {format_bytes(totals.size)}",
        "source": describe_side(move.src),
        "destination": describe_side(move.dst),
        "plan": explained.reason,
        "between ranks": f"{format_bytes(totals.crossed)} in {sum(totals.messages.values()):,} messages; "
        f"a rank has at most {busiest_peers(explained.world)} peers",
        "fan-out": describe_fan_out(explained),
        "staging": f"at most {format_bytes(width * next(iter(explained.world.values())).staging)} on a rank",
        "holders": describe_holders(totals, rates),
        "balance": describe_balance(totals),
        "predicted": describe_time(totals, rates),
    }
    for name, text in lines.items():
        table.add_row(f"[bold]{name}", text)
    return table


def describe_side(layout: Layout) -> str:
    """Describe a layout: its spelling, its ranks, and how many ranks hold each part."""
    copies = "one rank holds each part" if layout.replicas == 1 else f"{layout.replicas} ranks hold each part"
    return f"{format_layout(layout)} on ranks {format_ranks(layout.mesh.ranks)}; {copies}"


def describe_fan_out(explained: ExplainedMove) -> str:
    """Describe the collectives by which replica groups complete their shards."""
    groups = [members for members in fan_out_groups(explained.world) if len(members) > 1]
    if not groups:
        return "none"
    kinds = sorted({plan.fan_out.kind.value for plan in explained.world.values() if plan.fan_out is not None})
    return f"{' and '.join(kinds)} in {len(groups)} groups of {len(groups[0])}; brings {format_bytes(explained.totals.fan_out_bytes)} in all"


def messages_table(explained: ExplainedMove, most: int) -> Table:
    """Return a table of messages and local copies, with at most `most` rows."""
    table = Table(title="messages", title_justify="left", caption_justify="left")
    for head in ("from", "to", "part of the tensor", "bytes", "packed", "unpacked"):
        table.add_column(head, justify="left" if head.startswith("part") else "right")
    rows = list(_message_rows(explained))
    for row in rows[:most]:
        table.add_row(*row)
    if len(rows) > most:
        table.caption = f"{len(rows) - most:,} more; --messages {len(rows)} shows all"
    return table


def _message_rows(explained: ExplainedMove) -> Iterator[tuple[str, ...]]:
    """Yield the cells of every local copy and every message, by sender."""
    for rank, planned in explained.world.items():
        for region in planned.copies:
            yield str(rank), "itself", format_region(region), f"{explained.region_bytes(region):,}", "", ""
        for message in planned.sends:
            shards = planned.source, explained.world[message.peer].destination
            staged = ["" if shard is None or is_contiguous(message.region, shard) else "yes" for shard in shards]
            yield (
                str(rank),
                str(message.peer),
                format_region(message.region),
                f"{explained.region_bytes(message.region):,}",
                *staged,
            )


def fan_out_table(explained: ExplainedMove, most: int) -> Table:
    """Return a table of the bytes that each member brings to its fan-out, with at most `most` groups."""
    table = Table(title="fan-out", title_justify="left", caption_justify="left")
    for head in ("group", "shard", "brought by each member"):
        table.add_column(head)
    groups = [members for members in fan_out_groups(explained.world) if len(members) > 1]
    for members in groups[:most]:
        shard = explained.world[members[0]].destination or ()
        table.add_row(format_ranks(members), format_region(shard), _contributions(explained, members))
    if len(groups) > most:
        table.caption = f"{len(groups) - most:,} more groups; --messages {len(groups)} shows all"
    return table


def _contributions(explained: ExplainedMove, members: Members) -> str:
    """Describe the bytes that each member has before the fan-out; members without any are left out."""
    contributions = {rank: written_regions(explained.world[rank]) for rank in members}
    return "; ".join(
        f"{rank}: {format_bytes(sum(map(explained.region_bytes, regions)))}"
        for rank, regions in contributions.items()
        if regions
    )


def format_region(region: Region) -> str:
    """Return a region as Python slices; several intervals of a dim are joined by +."""
    if not all(region):
        return "empty"
    return f"\\[{', '.join('+'.join(f'{lo}:{hi}' for lo, hi in intervals) for intervals in region)}]"
