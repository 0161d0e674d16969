"""A cost model: how long a submission takes, from latencies and rates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

from restripe.analysis.spelling import SpellingError
from restripe.analysis.traffic import Members


@dataclass(frozen=True)
class Rates:
    """What the machine does. The defaults but `network` were fitted to H200 GPUs of one host (docs/performance.md).

    latency: us from a submission until its first byte moves, and again until a fan-out's does.
    message: us that one send or receive takes by itself, whatever its size.
    link: GB/s out of a rank, and as many into it, among the ranks of one host; a GB is 10^9 bytes.
    network: the same between hosts; 45 is what one 400 Gb/s adapter a GPU delivers.
    memory: GB/s at which a GPU packs, unpacks and copies pieces, each byte counted once.
    host: ranks a host; ranks are taken to fill hosts in order.

    Raises:
        SpellingError: a latency below 0, or a rate or a host that is not above 0.
    """

    latency: float = 10.0
    message: float = 2.5
    link: float = 370.0
    network: float = 45.0
    memory: float = 620.0
    host: int = 8

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value < 0 or (value == 0 and each.name not in {"latency", "message"}):
                raise SpellingError(f"expected a {each.name} above 0, got {value}")

    def near(self, one: int, other: int) -> bool:
        """Whether two ranks are on one host."""
        return one // self.host == other // self.host

    def between(self, near: bool) -> float:
        """Bytes a microsecond between ranks of one host, or of two."""
        return 1e3 * (self.link if near else self.network)


@dataclass(frozen=True)
class Prediction:
    """Milliseconds: the messages of the slowest rank, packing and local copies, and the slowest rank's fan-outs."""

    messages: float
    copies: float
    rebuild: float

    @property
    def total(self) -> float:
        """All, one after the other."""
        return self.messages + self.copies + self.rebuild


def predict(
    rates: Rates,
    sent: Mapping[tuple[int, int], int],
    messages: Mapping[tuple[int, int], int],
    copied: int,
    rebuilt: Mapping[Members, int],
) -> Prediction:
    """The time of one submission.

    All messages of a submission go in one group. A rank's messages take the longer of their bytes over its rates, out and
    in at the same time, and of their number times `message`. A fan-out brings a member what it lacks, at the rate of the
    slowest link between its members.

    Args:
        sent: bytes by (sender, receiver).
        messages: their number by (sender, receiver).
        copied: the most bytes that one rank copies in its own memory.
        rebuilt: by members, the most bytes that a fan-out brings to one of them.
    """
    busy = max(_wire(rates, sent), _calls(rates, messages))
    return Prediction(
        (rates.latency + busy) / 1e3 if sent else 0.0,
        copied / rates.memory / 1e6,
        (rates.latency + _rebuild(rates, rebuilt)) / 1e3 if rebuilt else 0.0,
    )


def _wire(rates: Rates, sent: Mapping[tuple[int, int], int]) -> float:
    """Microseconds of the busiest direction of the busiest rank; links and network carry at the same time."""
    found: Counter[tuple[str, int, bool]] = Counter()
    for (sender, receiver), size in sent.items():
        near = rates.near(sender, receiver)
        found["out", sender, near] += size
        found["in", receiver, near] += size
    return max((size / rates.between(near) for (_, _, near), size in found.items()), default=0.0)


def _calls(rates: Rates, messages: Mapping[tuple[int, int], int]) -> float:
    """Microseconds that the rank with the most messages takes to issue them."""
    found: Counter[int] = Counter()
    for pair, times in messages.items():
        found.update(dict.fromkeys(pair, times))
    return max(found.values(), default=0) * rates.message


def _rebuild(rates: Rates, rebuilt: Mapping[Members, int]) -> float:
    """Microseconds of the rank with the longest fan-outs."""
    found: defaultdict[int, float] = defaultdict(float)
    for members, size in rebuilt.items():
        near = all(rates.near(members[0], rank) for rank in members)
        for rank in members:
            found[rank] += size / rates.between(near)
    return max(found.values(), default=0.0)
