"""Which holder of a replicated source sends: the turns, and the load that they leave on each holder."""

from collections import Counter
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.layout.mesh import Layout, Mesh
from restripe.planning.plan import Holders, RankPlan
from restripe.planning.planner import holder_rule, plan

from ..helpers.drawings import EVEN_SIZES, FITTING, ORDERS, Drawn, box, drawings, hosted, side, sizes
from ..helpers.judge import Box, Side, groups


@st.composite
def fully_replicated(draw: st.DrawFn) -> Drawn:
    """A source on all its ranks, and a destination where every receiver is remote."""
    ranks, mesh = draw(ORDERS), draw(FITTING[6])
    src = Side(mesh, ranks[: prod(mesh)], (None,) * len(mesh))
    shape = sizes(draw, draw(st.integers(0, 3)), EVEN_SIZES)
    return Drawn(12, shape, src, side(draw, ranks[6:], len(shape), draw(FITTING[6])))


def load(drawn: Drawn) -> Counter[int]:
    """How many receivers each holder serves."""
    plans = drawn.plans()
    return Counter({rank: len(plans[rank].sends) for rank in drawn.src.ranks})


def spread(loads: Counter[int]) -> int:
    return max(loads.values()) - min(loads.values())


@pytest.mark.requirement("RS-UPSTREAM-5")
@settings(max_examples=500, deadline=None, derandomize=True)
@given(fully_replicated())
def test_a_fully_replicated_source_spreads_evenly_over_its_holders(drawn: Drawn) -> None:
    turns = [load(drawn._replace(rotation=rotation)) for rotation in range(len(drawn.src.ranks))]
    assert all(spread(loads) <= 1 for loads in turns)
    in_all = Counter({rank: sum(loads[rank] for loads in turns) for rank in drawn.src.ranks})
    assert spread(in_all) == 0
    assert sum(in_all.values()) == len(turns) * sum(turns[0].values())


@pytest.mark.requirement("RS-BATCH-6")
def test_the_tensors_of_a_model_do_not_all_pick_the_same_holder() -> None:
    src, dst = Side((8,), tuple(range(8)), (None,)), Side((1,), (8,), (None,))
    layouts = Drawn(9, (128,), src, dst).layouts()
    peers = Counter(plan(*layouts, (128,), 8, rotation).receives[0].peer for rotation in range(396))
    assert sorted(peers.values()) == [49] * 4 + [50] * 4


def senders(planned: RankPlan) -> dict[Box, int]:
    return {box(message.region): message.peer for message in planned.receives}


@pytest.mark.law
@pytest.mark.requirement("RS-UPSTREAM-5", "RS-BATCH-6")
@settings(max_examples=2_000, deadline=None, derandomize=True)
@given(drawings(), st.integers(1, 9))
def test_a_turn_moves_every_remote_receiver_to_the_next_holder(drawn: Drawn, turns: int) -> None:
    holders_of = {rank: group.members for group in groups(drawn.src, drawn.shape) for rank in group.members}
    later = drawn._replace(rotation=drawn.rotation + turns).shared_plans()
    for before, after in zip(drawn.shared_plans(), later, strict=True):
        assert before.copies == after.copies
        for region, sender in senders(before).items():
            held = holders_of[sender]
            assert senders(after)[region] == held[(held.index(sender) + turns) % len(held)]


@pytest.mark.law
@settings(max_examples=1_500, deadline=None, derandomize=True)
@given(drawings(), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_holders_on_the_receiver_s_host_come_first(drawn: Drawn, hosts: list[int]) -> None:
    src, dst = (hosted(each, hosts) for each in drawn.layouts())
    world = [plan(src, dst, drawn.shape, rank, drawn.rotation) for rank in range(drawn.world)]
    sent = {(rank, peer, region) for rank, each in enumerate(world) for peer, region, _ in each.sends}
    assert sent == {(peer, rank, region) for rank, each in enumerate(world) for peer, region, _ in each.receives}
    holders_of = {rank: group.members for group in groups(drawn.src, drawn.shape) for rank in group.members}
    for sender, receiver, _ in sent:
        near = [rank for rank in holders_of[sender] if hosts[rank] == hosts[receiver]]
        assert sender in near or not near
    for each, other in zip(world, drawn.shared_plans(), strict=True):
        assert senders(each).keys() == senders(other).keys()
        assert each.copies == other.copies


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawings())
def test_hosts_that_no_receiver_shares_change_nothing(drawn: Drawn) -> None:
    src, dst = drawn.layouts()
    apart = hosted(src, range(12)), hosted(dst, range(12, 24))
    assert holder_rule(*apart) is (Holders.ONE if src.replicas == 1 else Holders.TURNS)
    assert [plan(*apart, drawn.shape, rank, drawn.rotation) for rank in range(drawn.world)] == drawn.plans()


def test_receivers_on_one_host_take_its_holders_in_turn() -> None:
    """16 trainers on two hosts hold all; 8 generators share each host with them."""
    hosts = [*(rank // 8 for rank in range(16)), *(rank // 8 for rank in range(16))]
    src = hosted(Layout(Mesh((16,), tuple(range(16))), (Replicate(),)), hosts)
    dst = hosted(Layout(Mesh((16,), tuple(range(16, 32))), (Shard(0),)), hosts)
    assert holder_rule(src, dst) is Holders.NEAR
    for rotation in range(3):
        loads = Counter(plan(src, dst, (64,), rank, rotation).receives[0].peer for rank in range(16, 32))
        assert set(loads.values()) == {1}
        assert all(
            hosts[message.peer] == hosts[rank]
            for rank in range(16)
            for message in plan(src, dst, (64,), rank, rotation).sends
        )
