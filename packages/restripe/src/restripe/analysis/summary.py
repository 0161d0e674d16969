"""A whole model's move: by class of parameters as a table, and in all as sentences and figures. Needs the extra `cli`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import written
from restripe.analysis.totals import Totals


def amount(size: float) -> str:
    """Bytes for people: three figures and a decimal unit."""
    for name, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {name}" if size < 999.5 * scale else f"{size / scale:,.0f} {name}"
    return f"{size:,.0f} bytes"


def balance(totals: Totals) -> str:
    """The busiest sender and receiver beside their bounds."""
    found = totals.balance()
    return (
        f"busiest sender {amount(found.sender)}, {found.sending:.2f} times the least possible; "
        f"busiest receiver {amount(found.receiver)}, {found.receiving:.2f} times"
    )


def holders(totals: Totals, rates: Rates) -> str:
    """Which of the ranks that hold a part send it, and how many messages stay within a host for that."""
    if not totals.holders:
        return "none has to send"
    several = len(totals.holders) > 1
    goals = [f"{goal.value} ({count:,} tensors)" if several else goal.value for goal, count in totals.holders.items()]
    messages = sum(totals.messages.values())
    return f"{', '.join(goals)}; {totals.near(rates):,} of {messages:,} messages stay within a host"


def predicted(totals: Totals, rates: Rates) -> str:
    """The time, and its parts."""
    time = totals.predicted(rates)
    return f"{time.total:.3g} ms: messages {time.messages:.3g}, copies {time.copies:.3g}, fan-out {time.rebuild:.3g}"


def by_kind(moves: Sequence[Move], totals: Mapping[str, Totals], rates: Rates) -> Table:
    """A model's move, one line for each class of parameters and one for all."""
    table = Table(caption_justify="left", caption="x: the busiest rank's bytes over the least possible")
    heads = (
        "class",
        "tensors",
        "size",
        "source",
        "destination",
        "plan",
        "crossing",
        "fan-out",
        "sender x",
        "receiver x",
        "ms",
    )
    for head in heads:
        table.add_column(head, justify="left" if head in {"class", "source", "destination", "plan"} else "right")
    for kind, each in totals.items():
        of_kind = [move for move in moves if move.kind == kind]
        sides = [", ".join(sorted({written(getattr(move, end)) for move in of_kind})) for end in ("src", "dst")]
        if kind == "all":
            table.add_section()
        table.add_row(kind, *_cells(each, sides, rates))
    return table


def _cells(totals: Totals, sides: Sequence[str], rates: Rates) -> list[str]:
    found = totals.balance()
    plan = ", ".join(f"{reason.name.lower()}" for reason in totals.reasons)
    return [
        f"{totals.tensors:,}",
        amount(totals.size),
        *sides,
        plan,
        amount(totals.crossed),
        amount(totals.spread),
        f"{found.sending:.2f}",
        f"{found.receiving:.2f}",
        f"{totals.predicted(rates).total:.3g}",
    ]


def figures(totals: Totals, rates: Rates) -> dict[str, Any]:
    """The same for JSON: bytes, ratios and milliseconds."""
    found, time = totals.balance(), totals.predicted(rates)
    return {
        "tensors": totals.tensors,
        "distinct": totals.distinct,
        "bytes": totals.size,
        "destination_bytes": totals.needed,
        "crossing_bytes": totals.crossed,
        "broadcast_way_bytes": totals.needed,
        "messages": sum(totals.messages.values()),
        "messages_within_a_host": totals.near(rates),
        "fan_out_bytes": totals.spread,
        "busiest_sender_bytes": found.sender,
        "busiest_sender_ratio": found.sending,
        "busiest_receiver_bytes": found.receiver,
        "busiest_receiver_ratio": found.receiving,
        "predicted_ms": {"messages": time.messages, "copies": time.copies, "fan_out": time.rebuild, "all": time.total},
        "plans": {reason.name.lower(): count for reason, count in totals.reasons.items()},
        "holders": {goal.name.lower(): count for goal, count in totals.holders.items()},
    }


def verdict(totals: Totals, rates: Rates) -> list[str]:
    """What a simulation has shown, one sentence a line."""
    times = f", {totals.needed / totals.crossed:.3g} times as many" if totals.crossed else ""
    crossing = f"between ranks: {totals.crossed:,} bytes in {sum(totals.messages.values()):,} messages"
    return [
        f"{totals.tensors:,} tensors of {amount(totals.size)}, {totals.distinct:,} of them distinct up to their ranks and turn",
        f"every byte once: {totals.needed:,} bytes of destination shards, each written exactly once; every send has its receive",
        f"{crossing}, then {totals.spread:,} bytes among replicas",
        f"the broadcast way: {totals.needed:,} bytes{times}: every destination rank is sent its own shards from a gathered copy",
        f"holders: {holders(totals, rates)}",
        balance(totals),
        f"predicted {predicted(totals, rates)}",
    ]
