"""What a rank process does: it opens sessions, plays steps and reports, until its pipe ends."""

from __future__ import annotations

import faulthandler
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import torch
from torch._C._distributed_c10d import Store, TCPStore

from reshard_conformance.cases import Clear, parse
from reshard_conformance.contract import Implementation
from reshard_conformance.loading import locate
from reshard_conformance.oracle import Truth
from reshard_conformance.playing import Host, Options, Player, RankReport, cases_of

__all__ = ["WHERE", "Closing", "Opened", "Opening", "Playing", "SessionHost", "Start", "Trouble", "serve"]

#: The signal on which a rank process writes where it is.
WHERE = signal.SIGUSR1


@dataclass(frozen=True)
class Opening:
    """Start session `number`; place: where the implementation is. timeout in seconds, of every call."""

    number: int
    size: int
    place: str
    traced: bool
    timeout: float


@dataclass(frozen=True)
class Opened:
    """The answer of a rank that has opened a session: what it runs on."""

    rank: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Playing:
    """Make a step, given as JSON; call: the number of its first case in the session."""

    step: str
    before: tuple[str, ...]
    call: int
    options: Options


@dataclass(frozen=True)
class Closing:
    """End the session; clear: its ranks are in step, so caches are cleared first."""

    clear: bool


@dataclass(frozen=True)
class Trouble:
    """The answer of a rank that could not do what it was asked."""

    rank: int
    text: str


class SessionHost(Host, Protocol):
    """The host of one rank in one session."""

    def versions(self) -> Mapping[str, str]:
        """What lies under the rank beside torch, by name."""

    def close(self, *, clear: bool) -> None:
        """End the session; clear: its ranks are in step and have given back all that they made."""


#: What a rank process begins with: from its rank and the store of all ranks, how it makes the hosts of its sessions.
Start: TypeAlias = Callable[[int, Store], Callable[[Opening], SessionHost]]


class RankServer:
    """The session that is open in this process, if any."""

    def __init__(self, rank: int, hosts: Callable[[Opening], SessionHost]) -> None:
        self.rank, self.hosts = rank, hosts
        self.host: SessionHost | None = None
        self.player: Player | None = None

    def answer(self, message: object) -> object:
        if isinstance(message, Playing):
            return self.play(message)
        if isinstance(message, Opening):
            return self.open(message)
        if isinstance(message, Closing):
            self.close(clear=message.clear)
        return None

    def open(self, opening: Opening) -> Opened:
        implementation = cast("Implementation", locate(opening.place))
        self.host = self.hosts(opening)
        self.player = Player(self.rank, implementation, self.host)
        return Opened(self.rank, {"torch": torch.__version__, **self.host.versions()})

    def play(self, playing: Playing) -> RankReport:
        if self.player is None:
            raise RuntimeError("no session is open")
        step = parse(playing.step)
        truths = [Truth(case, playing.call + number) for number, case in enumerate(cases_of(step))]
        before = [clear for clear in map(parse, playing.before) if isinstance(clear, Clear)]
        return self.player.play(step, truths, playing.options, before)

    def close(self, *, clear: bool) -> None:
        player, self.player = self.player, None
        if clear and player is not None:
            player.clear(Clear(all_groups=True))
        del player
        if self.host is not None:
            self.host.close(clear=clear)
            self.host = None


def serve(rank: int, port: int, pipe: Connection, stack: str, start: Start) -> None:
    """Answer the messages of the pipe. port: of the store that all ranks share. stack: the file for WHERE's answer."""
    with Path(stack).open("w", encoding="utf-8") as file:
        faulthandler.register(WHERE, file, all_threads=False)
        answer_all(rank, port, pipe, start)


def answer_all(rank: int, port: int, pipe: Connection, start: Start) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, whose end closes the pipe
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the parent's process shows them where it runs the same code
    server = RankServer(rank, start(rank, TCPStore("127.0.0.1", port, is_master=False)))
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = server.answer(message)
        except Exception as error:  # noqa: BLE001 - the parent decides what a trouble means
            answer = Trouble(rank, f"{type(error).__name__}: {error}")
        pipe.send(answer)
