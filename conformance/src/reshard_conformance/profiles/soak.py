"""Profile lifecycle on devices: a group in long use takes no more of the device's memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given, seed

from reshard_conformance.case.files import Case, Destroy, dump
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import cases
from reshard_conformance.search.bench import Bench, Property, Script, search_settings, world_size

__all__ = ["PROPERTIES"]

#: The number of layouts of a run, of its calls, and of calls after which memory must not grow.
LAYOUTS, CALLS, SETTLED = 50, 10_000, 2_000
#: Bytes by which the memory in use may grow: the granularity of the driver's allocations.
GRAIN = 1 << 21


@dataclass(frozen=True)
class Soak:
    """Random calls of some layouts in one group; the script is the layouts, and seeds the order of calls."""

    name: str = "soak"
    profile: Profile = Profile.LIFECYCLE
    requirements: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"RS-CACHE-13": ()})
    steered: bool = False
    traced: bool = True
    least: Level = Level.L0

    def search(self, bench: Bench, number: int, examples: int, wanted: Sequence[str]) -> None:
        """See `Property`; a failure is not shrunk."""
        del wanted
        space = bench.space.at(min(size for size in bench.space.sizes if size > 1))
        found: dict[str, Case] = {}

        @seed(number)
        @search_settings(4 * LAYOUTS)
        @given(cases(space))
        def collect(case: Case) -> None:
            found.setdefault(repr(case.layout), case)

        for _ in range(examples):
            collect()
            self.judge(bench, tuple(found.values())[:LAYOUTS])

    def judge(self, bench: Bench, script: Script) -> None:
        """See `Property`."""
        bench.begin()
        session, order = bench.open_session(world_size(script)), random.Random(" ".join(map(dump, script)))  # noqa: S311 - no secret
        held: list[dict[int, int]] = []
        for call in range(1, CALLS + 1):
            step = order.choice(script)
            outcome = session.play(step, memory=call in {SETTLED, CALLS})
            bench.tick()
            if outcome.verdict != "pass":
                faults = [*outcome.faults, f"this is call {call} of one group"]
                bench.report(script, outcome.verdict, faults)
            if call in {SETTLED, CALLS}:
                held.append({report.rank: report.held for report in outcome.reports if report.held is not None})
        session.play(Destroy(0))
        faults = [
            f"rank {rank}: {after - before} bytes more of its device are in use after {CALLS} calls than after {SETTLED}"
            for (rank, before), after in zip(held[0].items(), held[1].values(), strict=True)
            if after - before > GRAIN
        ]
        if faults:
            bench.report(script, "fail", faults)
        bench.count(script)


PROPERTIES: tuple[Property, ...] = (Soak(),)
