"""Mutants that world nccl must kill: some that show anywhere, and some that only streams of a device show.

Rank processes load each of them as an attribute of this module, by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

import torch

from reshard_conformance.contract import Group, Profile, Stream
from reshard_conformance.generate.cases import Space
from reshard_conformance.mutants.calls import Call
from reshard_conformance.mutants.data import Balanced, Reversed, Writer
from reshard_conformance.mutants.plain import Message, Plain, Posting, State, breaks
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.plan import Chunk
from reshard_conformance.run.workers import failure_of
from reshard_conformance.search.bench import Bench, Finding, SearchHalted
from reshard_conformance.verdict.results import Failure
from reshard_conformance.worlds import World

__all__ = ["TARGETS", "HuntResult", "Target", "hunt", "hunt_all"]

#: The number of scripts of a hunt, and for the unbroken implementation; the maximum number of shrinking steps.
EXAMPLES, FEW, MAX_SHRINKS = 60, 10, 1
#: Seconds after which a step counts as hanging.
STEP_LIMIT = 15.0


@breaks("RS-BATCH-2")
class Swapped(Plain):
    """Odd ranks post the messages of a batch from its end."""

    def rounds(self, calls: Sequence[Call], group: Group) -> Iterable[tuple[int, Sequence[Call]]]:
        del group
        return [(0, calls)] if calls else []

    def posted(self, calls: list[Posting], group: Group) -> list[Posting]:
        return calls[::-1] if group.rank % 2 else calls


@breaks("RS-CACHE-5")
class Skipping(Plain):
    """The last rank skips a clear."""

    def clear_caches(self, group: Group) -> None:
        if group.rank < group.size - 1:
            state = self.state(group)
            self.release(state)
            self.states[group] = State(mode=state.mode)


@breaks("RS-CACHE-10")
class Quiet(Plain):
    """A rank clears its caches without the other ranks, and keeps its communicators."""

    def clear_caches(self, group: Group) -> None:
        state = self.state(group)
        state.plans.clear()
        state.agreed.clear()


@breaks("RS-STREAM-1")
class Wayward(Plain):
    """All work is enqueued on the default stream, whatever stream the caller gives."""

    def on(self, stream: Stream | None) -> AbstractContextManager[object]:
        del stream
        return torch.cuda.stream(torch.cuda.default_stream()) if torch.cuda.is_available() else nullcontext()


@breaks("RS-STREAM-5")
class Hurried(Plain):
    """Staging belongs to the default stream, which reuses it while the caller's stream still needs it."""

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        packed = super().pack(view, call, message, group)
        if packed.data_ptr() == view.data_ptr() or not packed.is_cuda:
            return packed
        with torch.cuda.stream(torch.cuda.default_stream(packed.device)):
            staging = torch.empty_like(packed)
        return staging.copy_(packed)


@breaks("RS-STREAM-6")
class Unrecorded(Plain):
    """The caller's memory is not recorded on the stream that uses it."""

    def hold(self, calls: Sequence[Call]) -> None:
        pass


@dataclass(frozen=True)
class Target:
    """A mutant, and where its fault shows: a property, the number of ranks, the coverage classes to aim at.

    hangs: real processes may then wait for each other forever, which counts as caught.
    """

    mutant: type[Plain]
    prop: str
    size: int
    wanted: tuple[str, ...] = ()
    hangs: bool = False


TARGETS = (
    Target(Balanced, "exact", 3, ("uneven on a sharded dim",), hangs=True),  # one rank refuses its shape, others wait
    Target(Reversed, "exact", 4, ("several mesh dims on one tensor dim",)),
    Target(Skipping, "cleared", 2, hangs=True),  # NCCL's release waits for the rank that skips it
    Target(Writer, "exact", 2),
    Target(Swapped, "turns", 4),
    Target(Wayward, "ordered", 2),
    Target(Hurried, "reused", 2),
    Target(Unrecorded, "reused", 2),
    Target(Quiet, "partly-cleared", 2),
)


@dataclass(frozen=True)
class HuntResult:
    """The result of one hunt: the failure, or None, and the number of scripts played."""

    target: Target
    failure: Failure | None
    scripts: int

    @property
    def mutant(self) -> type[Plain]:
        """The hunted implementation."""
        return self.target.mutant

    @property
    def verdict(self) -> str:
        """killed, survived or passed; or another verdict of the failure, such as hang or unsupported."""
        if self.failure is None:
            return "survived" if self.mutant.breaks else "passed"
        return "killed" if self.failure.verdict == "fail" else self.failure.verdict

    @property
    def as_expected(self) -> bool:
        """True if the mutant was killed, or hung where it may, or the unbroken implementation passed."""
        if not self.mutant.breaks:
            return self.verdict == "passed"
        return self.verdict == "killed" or (self.verdict == "hang" and self.target.hangs)


def hunt_all(world: World) -> Iterator[HuntResult]:
    """Hunt each mutant, then play the same properties on the unbroken implementation."""
    for target in TARGETS:
        yield hunt(world, target, EXAMPLES)
    for prop, size in dict.fromkeys((target.prop, target.size) for target in TARGETS):
        yield hunt(world, Target(Plain, prop, size), FEW)


def hunt(world: World, target: Target, examples: int) -> HuntResult:
    """Play the target's property until something fails."""
    prop = PROPERTIES[target.prop]
    keep = prop.profile not in {Profile.LIFECYCLE, Profile.AGREEMENT}
    name = f"{__name__}:{target.mutant.name}"
    bench = Bench(world, name, Space((target.size,), few=0), prop.traced, keep_groups=keep, max_shrinks=MAX_SHRINKS)
    failed: Finding | None = None
    with closing(bench):
        try:
            prop.search(bench, 0, examples, target.wanted)
            bench.end_groups()
        except Finding as finding:
            failed = finding
        except SearchHalted as halt:
            failed = halt.finding
    chunk = Chunk(world.name, target.prop, (target.size,), 0, 1, examples)
    return HuntResult(target, None if failed is None else failure_of(chunk, failed), bench.scripts)


def __getattr__(name: str) -> Plain:
    """Return a new mutant, or the unbroken implementation, of that name."""
    kinds: list[type[Plain]] = [Plain, *(target.mutant for target in TARGETS)]
    for kind in kinds:
        if kind.name == name:
            return kind()
    raise AttributeError(name)
