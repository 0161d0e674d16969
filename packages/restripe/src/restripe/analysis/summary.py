"""Summaries of a model's move: table, sentences, and figures for JSON. Needs the extra `cli`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import format_layout
from restripe.analysis.totals import Totals


def format_bytes(size: float) -> str:
    """Return a size in bytes with three digits and a decimal unit."""
    for name, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {name}" if size < 999.5 * scale else f"{size / scale:,.0f} {name}"
    return f"{size:,.0f} bytes"


def describe_balance(totals: Totals) -> str:
    """Describe the busiest sender and the busiest receiver beside their lower bounds."""
    balance = totals.balance()
    return (
        f"busiest sender {format_bytes(balance.sender)}, {balance.sending:.2f} times the least possible; "
        f"busiest receiver {format_bytes(balance.receiver)}, {balance.receiving:.2f} times"
    )


def describe_holders(totals: Totals, rates: Rates) -> str:
    """Describe the rule that chooses the sending holder, and the number of messages within a host."""
    if not totals.holders:
        return "none has to send"
    several = len(totals.holders) > 1
    goals = [f"{goal.value} ({count:,} tensors)" if several else goal.value for goal, count in totals.holders.items()]
    messages = sum(totals.messages.values())
    return f"{', '.join(goals)}; {totals.messages_within_host(rates):,} of {messages:,} messages stay within a host"


def describe_time(totals: Totals, rates: Rates) -> str:
    """Describe the predicted time and its parts."""
    time = totals.predicted_time(rates)
    return f"{time.total:.3g} ms: messages {time.messages:.3g}, copies {time.copies:.3g}, fan-out {time.fan_outs:.3g}"


def by_kind(moves: Sequence[Move], totals: Mapping[str, Totals], rates: Rates) -> Table:
    """Return a table with a line for each class of parameters and one for all."""
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
    for kind, kind_totals in totals.items():
        of_kind = [move for move in moves if move.kind == kind]
        sides = [", ".join(sorted({format_layout(getattr(move, end)) for move in of_kind})) for end in ("src", "dst")]
        if kind == "all":
            table.add_section()
        table.add_row(kind, *_cells(kind_totals, sides, rates))
    return table


def _cells(totals: Totals, sides: Sequence[str], rates: Rates) -> list[str]:
    """Return the cells of one line after its class."""
    balance = totals.balance()
    plan = ", ".join(f"{reason.name.lower()}" for reason in totals.reasons)
    return [
        f"{totals.tensors:,}",
        format_bytes(totals.size),
        *sides,
        plan,
        format_bytes(totals.crossed),
        format_bytes(totals.fan_out_bytes),
        f"{balance.sending:.2f}",
        f"{balance.receiving:.2f}",
        f"{totals.predicted_time(rates).total:.3g}",
    ]


def figures(totals: Totals, rates: Rates) -> dict[str, Any]:
    """Return the figures of a move for JSON: bytes, ratios and milliseconds."""
    balance, time = totals.balance(), totals.predicted_time(rates)
    return {
        "tensors": totals.tensors,
        "distinct": totals.distinct,
        "bytes": totals.size,
        "destination_bytes": totals.needed,
        "crossing_bytes": totals.crossed,
        "broadcast_way_bytes": totals.needed,
        "messages": sum(totals.messages.values()),
        "messages_within_a_host": totals.messages_within_host(rates),
        "fan_out_bytes": totals.fan_out_bytes,
        "busiest_sender_bytes": balance.sender,
        "busiest_sender_ratio": balance.sending,
        "busiest_receiver_bytes": balance.receiver,
        "busiest_receiver_ratio": balance.receiving,
        "predicted_ms": {"messages": time.messages, "copies": time.copies, "fan_out": time.fan_outs, "all": time.total},
        "plans": {reason.name.lower(): count for reason, count in totals.reasons.items()},
        "holders": {goal.name.lower(): count for goal, count in totals.holders.items()},
    }


def verdict(totals: Totals, rates: Rates) -> list[str]:
    """Return the findings of a simulation, one sentence a line."""
    times = f", {totals.needed / totals.crossed:.3g} times as many" if totals.crossed else ""
    crossing = f"between ranks: {totals.crossed:,} bytes in {sum(totals.messages.values()):,} messages"
    return [
        f"{totals.tensors:,} tensors of {format_bytes(totals.size)}, {totals.distinct:,} of them distinct up to their ranks and rotation",
        f"every byte once: {totals.needed:,} bytes of destination shards, each written exactly once; every send has its receive",
        f"{crossing}, then {totals.fan_out_bytes:,} bytes among replicas",
        f"the broadcast way: {totals.needed:,} bytes{times}: every destination rank is sent its own shards from a gathered copy",
        f"holders: {describe_holders(totals, rates)}",
        describe_balance(totals),
        f"predicted {describe_time(totals, rates)}",
    ]
