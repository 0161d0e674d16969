"""The breaks that world nccl has to catch: those that show anywhere, and those that only streams of a device show.

Rank processes find each of them as an attribute of this module, by the name that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

import torch

from reshard_conformance.contract import Group, Profile, Stream
from reshard_conformance.generator import Space
from reshard_conformance.mutants.calls import Call
from reshard_conformance.mutants.moving import Balanced, Reversed, Writer
from reshard_conformance.mutants.plain import Message, Plain, Posting, State, breaks
from reshard_conformance.plan import Chunk
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.results import Failure
from reshard_conformance.search import Bench, Finding, Halt
from reshard_conformance.workers import failure_of
from reshard_conformance.worlds import World

__all__ = ["BREAKS", "Break", "Hunted", "hunt", "hunts"]

#: Scripts of a hunt, and of one for what nothing is wrong with; how often a failing script is tried again.
EXAMPLES, FEW, TRIES = 60, 10, 1
LIMIT = 15.0  # seconds after which a step hangs


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
    """A rank that clears tells nobody, and keeps its communicators."""

    def clear_caches(self, group: Group) -> None:
        state = self.state(group)
        state.plans.clear()
        state.agreed.clear()


@breaks("RS-STREAM-1")
class Wayward(Plain):
    """All is enqueued on the default stream, whatever stream is asked for."""

    def on(self, stream: Stream | None) -> AbstractContextManager[object]:
        del stream
        return torch.cuda.stream(torch.cuda.default_stream()) if torch.cuda.is_available() else nullcontext()


@breaks("RS-STREAM-5")
class Hurried(Plain):
    """Staging is memory of the default stream, which has it back before the caller's stream is through with it."""

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        found = super().pack(view, call, message, group)
        if found.data_ptr() == view.data_ptr() or not found.is_cuda:
            return found
        with torch.cuda.stream(torch.cuda.default_stream(found.device)):
            area = torch.empty_like(found)
        return area.copy_(found)


@breaks("RS-STREAM-6")
class Unrecorded(Plain):
    """The caller's memory is not held for the stream that uses it."""

    def hold(self, calls: Sequence[Call]) -> None:
        pass


@dataclass(frozen=True)
class Break:
    """Where a break shows: a property, the number of ranks, the coverage classes to aim at.

    hangs: whether real processes may wait for each other for ever, which is caught where what it breaks does not.
    """

    kind: type[Plain]
    prop: str
    size: int
    wanted: tuple[str, ...] = ()
    hangs: bool = False


BREAKS = (
    Break(Balanced, "exact", 3, ("uneven on a sharded dim",), hangs=True),  # one rank refuses its shape, others wait
    Break(Reversed, "exact", 4, ("several mesh dims on one tensor dim",)),
    Break(Skipping, "cleared", 2, hangs=True),  # NCCL's release waits for the rank that skips it
    Break(Writer, "exact", 2),
    Break(Swapped, "turns", 4),
    Break(Wayward, "ordered", 2),
    Break(Hurried, "reused", 2),
    Break(Unrecorded, "reused", 2),
    Break(Quiet, "partly-cleared", 2),
)


@dataclass(frozen=True)
class Hunted:
    """How one hunt ended: the failure that was found, or None, after so many scripts."""

    sought: Break
    failure: Failure | None
    scripts: int

    @property
    def kind(self) -> type[Plain]:
        """What was hunted."""
        return self.sought.kind

    @property
    def word(self) -> str:
        """killed, survived or passed; or how else it failed: a hang, or what cannot be played here."""
        if self.failure is None:
            return "survived" if self.kind.breaks else "passed"
        return "killed" if self.failure.verdict == "fail" else self.failure.verdict

    @property
    def good(self) -> bool:
        """Whether a break was killed or hung as it may, or what is whole passed."""
        return self.word in (("killed", "hang" if self.sought.hangs else "killed") if self.kind.breaks else ("passed",))


def hunts(world: World) -> Iterator[Hunted]:
    """Hunt each of the breaks, then play what shows them on what they break."""
    for one in BREAKS:
        yield hunt(world, one, EXAMPLES)
    for prop, size in dict.fromkeys((one.prop, one.size) for one in BREAKS):
        yield hunt(world, Break(Plain, prop, size), FEW)


def hunt(world: World, one: Break, examples: int) -> Hunted:
    """Play the property until something fails."""
    prop = PROPERTIES[one.prop]
    keep = prop.profile not in {Profile.LIFECYCLE, Profile.AGREEMENT}
    name = f"{__name__}:{one.kind.name}"
    bench = Bench(world, name, Space((one.size,), few=0), prop.traced, keep=keep, most=TRIES)
    found: Finding | None = None
    with closing(bench):
        try:
            prop.search(bench, 0, examples, one.wanted)
            bench.leave()
        except Finding as finding:
            found = finding
        except Halt as halt:
            found = halt.finding
    chunk = Chunk(world.name, one.prop, (one.size,), 0, 1, examples)
    return Hunted(one, None if found is None else failure_of(chunk, found), bench.scripts)


def __getattr__(name: str) -> Plain:
    """A new one of that name."""
    kinds: list[type[Plain]] = [Plain, *(one.kind for one in BREAKS)]
    for kind in kinds:
        if kind.name == name:
            return kind()
    raise AttributeError(name)
