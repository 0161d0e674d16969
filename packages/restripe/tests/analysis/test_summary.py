"""The summaries of a whole model's move."""

from __future__ import annotations

import json
from collections import Counter

from rich.console import Console

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Degrees, moves
from restripe.analysis.models import parameters
from restripe.analysis.simulation import simulate
from restripe.analysis.summary import by_kind, describe_holders, figures, format_bytes, verdict
from restripe.analysis.totals import Totals
from restripe.planning.plan import Holders

MOVES = moves(parameters("qwen3-4b"), Degrees.of("TP2xDP4"), Degrees.of("TP4xDP2"))
TOTALS = simulate(MOVES)


def test_amounts() -> None:
    assert [format_bytes(size) for size in (0, 999, 1_000, 7_267_018_752)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "7.27 GB",
    ]
    assert format_bytes(999_900) == "1,000 kB"


def test_a_line_for_each_class_and_one_for_all() -> None:
    console = Console(width=180, record=True, file=None)
    with console.capture() as capture:
        console.print(by_kind(MOVES, TOTALS, Rates()))
    lines = [line.replace("│", " ").split() for line in capture.get().splitlines()]
    assert ["down", "36", "1.79", "GB", "4x2:R,S(1)", "2x4:R,S(1)", "striped"] in [line[:7] for line in lines]
    assert ["all", "396", "7.27", "GB", "striped"] in [line[:5] for line in lines]


def test_the_verdict() -> None:
    lines = "\n".join(verdict(TOTALS["all"], Rates()))
    assert "every byte once: 14,536,359,936 bytes of destination shards" in lines
    assert "between ranks: 7,267,018,752 bytes in 3,168 messages" in lines
    assert "the broadcast way: 14,536,359,936 bytes, 2 times as many" in lines
    assert "busiest sender 908 MB, 1.00 times the least possible" in lines


def test_which_holders_send() -> None:
    still = Totals()
    assert describe_holders(still, Rates()) == "none has to send"
    assert (
        describe_holders(TOTALS["all"], Rates(host=16)) == "all take turns; 3,168 of 3,168 messages stay within a host"
    )
    mixed = Totals(messages=Counter({(0, 8): 3, (8, 9): 2}), holders=Counter({Holders.ONE: 4, Holders.NEAR: 1}))
    assert describe_holders(mixed, Rates()) == (
        "one has each part (4 tensors), those on the receiver's host first (1 tensors); 2 of 5 messages stay within a host"
    )


def test_figures_are_json() -> None:
    printed = json.loads(json.dumps(figures(TOTALS["all"], Rates())))
    assert printed["crossing_bytes"] == printed["bytes"] == 7_267_018_752
    assert printed["plans"] == {"striped": 396}
    assert printed["holders"] == {"turns": 396}
    assert (printed["messages"], printed["messages_within_a_host"]) == (3_168, 0)
    assert printed["predicted_ms"]["all"] == sum(
        printed["predicted_ms"][part] for part in ("messages", "copies", "fan_out")
    )
