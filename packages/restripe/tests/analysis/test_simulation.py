"""Simulation of a whole model on all ranks: a tensor that is planned once stands for all like it."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.analysis import simulation
from restripe.analysis.mapping import Degrees, Move, moves
from restripe.analysis.models import parameters
from restripe.analysis.simulation import Simulation, renumber_ranks, simulate
from restripe.analysis.spelling import layout
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import PlanFaultError, checked_traffic, plan_all_ranks, rename_ranks
from restripe.layout.mesh import Host
from restripe.planning.balance import rotations
from restripe.planning.plan import RankPlan

from ..helpers.drawings import Drawn, drawings, hosted

MAPPINGS = [
    ("qwen3-4b", "DP8", "TP8"),
    ("qwen3-4b", "TP2xDP4", "TP4xDP2"),
    ("qwen3-30b-a3b", "EP8xPP2", "TP8xDP2"),
    ("qwen3-30b-a3b", "EP4xDP2", "TP4xEP1xDP2"),
    ("qwen3-30b-a3b", "EP4xETP2", "EP8"),
    ("qwen3-30b-a3b", "DP12", "TP1"),  # as many holders as a layer has tensors
    ("qwen3-30b-a3b", "DP8", "TP2"),
    ("qwen3-4b", "DP11", "TP1"),
]


def mapped(model: str, train: str, generate: str) -> list[Move]:
    return moves(parameters(model), Degrees.of(train), Degrees.of(generate))


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(drawings(), st.none() | st.lists(st.sampled_from(["a", "b", 7]), min_size=12, max_size=12))
def test_a_plan_knows_ranks_by_their_order_and_hosts_by_which_are_the_same(
    drawn: Drawn, hosts: list[Host] | None
) -> None:
    src, dst = drawn.layouts() if hosts is None else (hosted(layout, hosts) for layout in drawn.layouts())
    new_src, new_dst, original_ranks = renumber_ranks(src, dst)
    assert {*new_src.mesh.ranks, *new_dst.mesh.ranks} == set(range(len(original_ranks)))
    alike = rename_ranks(checked_traffic(plan_all_ranks(new_src, new_dst, drawn.shape, drawn.rotation)), original_ranks)
    assert alike == checked_traffic(plan_all_ranks(src, dst, drawn.shape, drawn.rotation))


def test_stages_alike_on_other_hosts_are_planned_once() -> None:
    without_hosts, with_hosts = [
        simulate(moves(parameters("qwen3-4b"), Degrees.of("PP2xDP8"), Degrees.of("DP2xTP8"), host))["all"]
        for host in (None, 8)
    ]
    assert without_hosts.distinct == with_hosts.distinct
    assert without_hosts.sent == with_hosts.sent


def test_what_is_planned_once_counts_as_often_as_it_occurs() -> None:
    tensors = [move for move in mapped("qwen3-30b-a3b", "EP2xPP3xDP3", "TP4xDP2") if move.name.count(".") < 3][:120]
    expected = Totals()
    for rotation, move in zip(rotations(tensors), tensors, strict=True):
        expected.add(move, checked_traffic(plan_all_ranks(move.src, move.dst, move.shape, rotation)))
    totals = simulate(tensors)["all"]
    assert 0 < totals.distinct < totals.tensors == 120
    for field in (total.name for total in fields(Totals) if total.name != "distinct"):
        assert getattr(totals, field) == getattr(expected, field), field


def test_classes_add_up() -> None:
    totals = simulate(mapped("qwen3-4b", "DP2", "TP2"))
    whole = totals.pop("all")
    assert whole.tensors == sum(kind.tensors for kind in totals.values()) == 396
    assert whole.sent == sum((kind.sent for kind in totals.values()), start=type(whole.sent)())


@pytest.mark.parametrize(("model", "train", "generate"), MAPPINGS)
def test_no_rank_carries_a_tenth_more_than_its_share(model: str, train: str, generate: str) -> None:
    balance = simulate(mapped(model, train, generate))["all"].balance()
    assert balance.sending <= 1.1
    assert balance.receiving <= 1.1


def test_a_fault_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: object) -> dict[int, RankPlan]:
        world = plan_all_ranks(*arguments)  # type: ignore[arg-type]
        del world[1]
        return world

    monkeypatch.setattr(simulation, "plan_all_ranks", forgetful)
    move = Move("layers.0.q", "q", (4,), torch.int8, layout("1:R"), layout("1:R", first=5))
    with pytest.raises(
        PlanFaultError, match=r"tensor 'layers.0.q', ranks by their order in both meshes: rank 0 sends .* to rank 1"
    ):
        Simulation().traffic(move, 0)
