"""Totals of several tensors, and the lower bound that the busiest ranks are held against."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.analysis.cost import Rates
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import layout
from restripe.analysis.totals import Totals, bound
from restripe.analysis.traffic import checked_traffic, plan_all_ranks
from restripe.planning.plan import Holders, Reason

from ..helpers.drawings import Drawn, drawings


def counted(*drawn: Move) -> Totals:
    totals = Totals()
    for rotation, move in enumerate(drawn):
        totals.add(move, checked_traffic(plan_all_ranks(move.src, move.dst, move.shape, rotation)))
    return totals


def test_bytes_of_two_tensors() -> None:
    weight = Move("weight", "", (4, 2), torch.bfloat16, layout("2:S(0)"), layout("2:R", first=2))
    bias = Move("bias", "", (4,), torch.float32, layout("2:R"), layout("2:S(0)", None, "0-1"))
    totals = counted(weight, bias)
    assert (totals.tensors, totals.size, totals.needed) == (2, 32, 48)
    assert totals.sent == {(0, 2): 8, (1, 3): 8}
    assert totals.crossed == 16
    assert totals.copied == {0: 8, 1: 8}
    assert totals.fan_outs == {(2, 3): 8}
    assert totals.fan_out_bytes == 16
    assert totals.reasons == {Reason.STRIPED: 1, Reason.LOCAL: 1}
    balance = totals.balance()
    assert (balance.sender, balance.sender_bound, balance.sending) == (8, 8, 1)
    assert (balance.receiver, balance.receiver_bound, balance.receiving) == (8, 8, 1)


def test_which_holders_send_and_what_stays_within_a_host() -> None:
    on_hosts = Move("", "", (4,), torch.int8, layout("2:R", host=2), layout("2:S(0)", first=2, host=2))
    near_holder = Move("", "", (4,), torch.int8, layout("3:R", host=2), layout("1:R", first=3, host=2))
    one_holder = Move("", "", (4,), torch.int8, layout("1:R"), layout("1:R", first=1))
    still = Move("", "", (4,), torch.int8, layout("2:R"), layout("2:R"))
    totals = counted(on_hosts, near_holder, one_holder, still)
    assert totals.holders == {Holders.TURNS: 1, Holders.NEAR: 1, Holders.ONE: 1}
    assert totals.sent == {(0, 2): 2, (1, 3): 2, (2, 3): 4, (0, 1): 4}
    assert totals.messages_within_host(Rates(host=2)) == 2


def test_the_busiest_is_held_against_an_even_share() -> None:
    move = Move("uneven", "", (5,), torch.int8, layout("1:R"), layout("4:S(0)", first=1))
    balance = counted(move).balance()
    assert (balance.receiver, balance.receiver_bound, balance.receiving) == (2, 5 / 4, 1.6)


def test_nothing_that_moves_is_balanced() -> None:
    move = Move("still", "", (5,), torch.int8, layout("1:R"), layout("1:R"))
    assert counted(move).balance().sending == counted(move).balance().receiving == 1


def test_the_bound_looks_at_each_mesh_and_what_lies_in_it() -> None:
    assert bound(Counter()) == 0
    assert bound({frozenset({0, 1}): 8, frozenset({2, 3}): 2}) == 4
    assert bound({frozenset({0, 1}): 8, frozenset({0}): 2}) == 5
    assert bound({frozenset({0}): 6, frozenset({0, 1}): 2}) == 6


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(drawings(), min_size=1, max_size=4))
def test_no_plan_falls_below_the_bound(drawn: list[Drawn]) -> None:
    balance = counted(*(Move("", "", reshard.shape, torch.int8, *reshard.layouts()) for reshard in drawn)).balance()
    assert balance.sending >= 1 - 1e-9
    assert balance.receiving >= 1 - 1e-9
