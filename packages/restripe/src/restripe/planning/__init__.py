"""Planning: pure arithmetic from two layouts and a shape to what one rank does."""

from restripe.planning.plan import FanOut, FanOutKind, Holders, Message, RankPlan, Reason
from restripe.planning.planner import Planner, holders, plan, planner
from restripe.planning.rounds import Part, rounds
from restripe.planning.turns import turns

__all__ = [
    "FanOut",
    "FanOutKind",
    "Holders",
    "Message",
    "Part",
    "Planner",
    "RankPlan",
    "Reason",
    "holders",
    "plan",
    "planner",
    "rounds",
    "turns",
]
