"""A cost model: how long a submission takes, from latencies and rates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

from restripe.analysis.spelling import SpellingError
from restripe.analysis.traffic import Members


@dataclass(frozen=True)
class Rates:
    """Latencies and rates of a machine. All defaults but `network` were fitted to H200 GPUs of one host (docs/performance.md).

    latency: us from a submission until its first byte moves, and again until the first byte of a fan-out moves.
    message: us that a send or a receive takes by itself, whatever its size.
    link: GB/s out of a rank, and as many into it, between ranks of one host; a GB is 10^9 bytes.
    network: GB/s out of a rank, and as many into it, between hosts; one 400 Gb/s adapter a GPU delivers 45.
    memory: GB/s at which a GPU packs, unpacks and copies pieces, each byte counted once.
    host: number of ranks on a host; ranks fill hosts in order.

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
        for rate in fields(self):
            value = getattr(self, rate.name)
            if value < 0 or (value == 0 and rate.name not in {"latency", "message"}):
                raise SpellingError(f"expected a {rate.name} above 0, got {value}")

    def same_host(self, rank: int, peer: int) -> bool:
        """Return whether two ranks are on one host."""
        return rank // self.host == peer // self.host

    def bytes_per_us(self, within_host: bool) -> float:
        """Return the bytes that cross in a microsecond between two ranks of one host, or of two hosts."""
        return 1e3 * (self.link if within_host else self.network)


@dataclass(frozen=True)
class Prediction:
    """Predicted milliseconds of messages, of copies, and of fan-outs, each on the rank where it takes longest."""

    messages: float
    copies: float
    fan_outs: float

    @property
    def total(self) -> float:
        """The sum of the three parts, which run one after the other."""
        return self.messages + self.copies + self.fan_outs


def predict_time(
    rates: Rates,
    sent: Mapping[tuple[int, int], int],
    messages: Mapping[tuple[int, int], int],
    copied: int,
    fan_outs: Mapping[Members, int],
) -> Prediction:
    """Predict the time of one submission.

    All messages of a submission go in one group. A rank's messages take the longer of two times: their bytes over the rank's
    rates, out and in at once, and their number times `message`. A fan-out brings each member the bytes that it lacks, at the
    rate of the slowest link between the members.

    Args:
        sent: bytes by (sender, receiver).
        messages: number of messages by (sender, receiver).
        copied: the most bytes that one rank copies in its own memory.
        fan_outs: by the members of a fan-out, the most bytes that it brings to one of them.
    """
    busy = max(_wire_us(rates, sent), _issue_us(rates, messages))
    return Prediction(
        (rates.latency + busy) / 1e3 if sent else 0.0,
        copied / rates.memory / 1e6,
        (rates.latency + _fan_out_us(rates, fan_outs)) / 1e3 if fan_outs else 0.0,
    )


def _wire_us(rates: Rates, sent: Mapping[tuple[int, int], int]) -> float:
    """Return the microseconds of the busiest direction of the busiest rank; links and network carry at once."""
    loads: Counter[tuple[str, int, bool]] = Counter()
    for (sender, receiver), size in sent.items():
        within_host = rates.same_host(sender, receiver)
        loads["out", sender, within_host] += size
        loads["in", receiver, within_host] += size
    return max((size / rates.bytes_per_us(within_host) for (_, _, within_host), size in loads.items()), default=0.0)


def _issue_us(rates: Rates, messages: Mapping[tuple[int, int], int]) -> float:
    """Return the microseconds that the rank with the most messages takes to issue them."""
    counts: Counter[int] = Counter()
    for pair, count in messages.items():
        counts.update(dict.fromkeys(pair, count))
    return max(counts.values(), default=0) * rates.message


def _fan_out_us(rates: Rates, fan_outs: Mapping[Members, int]) -> float:
    """Return the microseconds of the rank with the longest fan-outs."""
    times: defaultdict[int, float] = defaultdict(float)
    for members, size in fan_outs.items():
        within_host = all(rates.same_host(members[0], rank) for rank in members)
        for rank in members:
            times[rank] += size / rates.bytes_per_us(within_host)
    return max(times.values(), default=0.0)
