"""The tables of one tensor's move."""

from __future__ import annotations

import torch
from rich.console import Console, RenderableType

from restripe.analysis.cost import Rates
from restripe.analysis.explanation import ExplainedMove, facts_table, fan_out_table, format_region, messages_table
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import layout


def explained(src: str, dst: str, *shape: int, ranks: str | None = None) -> ExplainedMove:
    source = layout(src)
    target = layout(dst, None, ranks, first=len(source.mesh.ranks))
    return ExplainedMove.of(Move("tensor", "", shape, torch.bfloat16, source, target))


def printed(table: RenderableType) -> list[str]:
    """Return the words of each printed line."""
    console = Console(width=180)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]


def test_the_facts() -> None:
    lines = printed(facts_table(explained("4:S(0)", "2x2:R,S(1)", 8, 4), Rates()))
    assert "tensor tensor: 8 x 4, bfloat16, 64 bytes" in lines
    assert "source 4:S(0) on ranks 0-3; one rank holds each part" in lines
    assert "destination 2x2:R,S(1) on ranks 4-7; 2 ranks hold each part" in lines
    assert "plan striped: each replica receives its stripe, then one all-gather" in lines
    assert "between ranks 64 bytes in 8 messages; a rank has at most 2 peers" in lines
    assert "fan-out all_gather in 2 groups of 2; brings 64 bytes in all" in lines
    assert any(line.startswith("staging at most 16 bytes on a rank") for line in lines)
    assert any(line.startswith("balance busiest sender 16 bytes, 1.00 times the least possible") for line in lines)
    assert any(line.startswith("predicted 0.02") for line in lines)


def test_who_sends_what_to_whom() -> None:
    lines = printed(messages_table(explained("2:S(0)", "2:S(1)", 4, 2, ranks="0-1"), 9))
    assert "0 itself [0:2, 0:1] 4" in lines
    assert "0 1 [0:2, 1:2] 4 yes" in lines
    assert "1 0 [2:4, 0:1] 4 yes" in lines


def test_long_tables_are_cut() -> None:
    move = explained("4:S(0)", "4:S(1)", 8, 4)
    assert "14 more; --messages 16 shows all" in printed(messages_table(move, 2))
    assert not any("more" in line for line in printed(messages_table(move, 16)))


def test_what_the_members_of_a_replica_group_bring() -> None:
    lines = printed(fan_out_table(explained("4:S(0)", "2x2:R,S(1)", 8, 4), 9))
    assert "4,6 [0:8, 0:2] 4: 16 bytes; 6: 16 bytes" in lines


def test_regions() -> None:
    assert format_region((((0, 2), (4, 6)), ((1, 3),))) == "\\[0:2+4:6, 1:3]"
    assert format_region(((), ((0, 2),))) == "empty"
