"""The main loop of a rank process: it opens sessions, plays steps and reports, until its pipe is closed."""

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

from reshard_conformance.case.files import Clear, parse
from reshard_conformance.contract import Implementation
from reshard_conformance.judge.oracle import Truth
from reshard_conformance.judge.outcomes import RankReport
from reshard_conformance.judge.player import Player, PlayOptions, RankHost
from reshard_conformance.loading import locate

__all__ = [
    "STACK_SIGNAL",
    "CloseSession",
    "OpenSession",
    "PlayStep",
    "RankError",
    "SessionHost",
    "SessionOpened",
    "StartRank",
    "serve",
]

#: The signal on which a rank process writes its stack.
STACK_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class OpenSession:
    """A request to start session `number`. place: of the implementation. timeout: of every call, in seconds."""

    number: int
    size: int
    place: str
    traced: bool
    timeout: float


@dataclass(frozen=True)
class SessionOpened:
    """The answer of a rank that has opened a session, with the versions that it runs on."""

    rank: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class PlayStep:
    """A request to play a step, given as JSON.

    before: earlier clears on some ranks only. call: the number of the step's first case in the session.
    """

    step: str
    before: tuple[str, ...]
    call: int
    options: PlayOptions


@dataclass(frozen=True)
class CloseSession:
    """A request to end the session. clear: the ranks are in step, so caches are cleared first."""

    clear: bool


@dataclass(frozen=True)
class RankError:
    """The answer of a rank where a request raised."""

    rank: int
    text: str


class SessionHost(RankHost, Protocol):
    """The host of one rank in one session."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions that the rank runs on except torch's, by name."""

    def close(self, *, clear: bool) -> None:
        """End the session. clear: the ranks are in step and have released all that they made."""


#: Called once in a rank process with its rank and the store of all ranks; returns what makes the hosts of its sessions.
StartRank: TypeAlias = Callable[[int, Store], Callable[[OpenSession], SessionHost]]


class RankServer:
    """Answers requests in one rank process; at most one session is open."""

    def __init__(self, rank: int, hosts: Callable[[OpenSession], SessionHost]) -> None:
        self.rank, self.hosts = rank, hosts
        self.host: SessionHost | None = None
        self.player: Player | None = None

    def answer(self, message: object) -> object:
        if isinstance(message, PlayStep):
            return self.play(message)
        if isinstance(message, OpenSession):
            return self.open(message)
        if isinstance(message, CloseSession):
            self.close(clear=message.clear)
        return None

    def open(self, request: OpenSession) -> SessionOpened:
        implementation = cast("Implementation", locate(request.place))
        self.host = self.hosts(request)
        self.player = Player(self.rank, implementation, self.host)
        return SessionOpened(self.rank, {"torch": torch.__version__, **self.host.versions()})

    def play(self, request: PlayStep) -> RankReport:
        if self.player is None:
            raise RuntimeError("no session is open")
        step = parse(request.step)
        truths = [Truth(case, request.call + number) for number, case in enumerate(step.cases)]
        before = [clear for clear in map(parse, request.before) if isinstance(clear, Clear)]
        return self.player.play(step, truths, request.options, before)

    def close(self, *, clear: bool) -> None:
        player, self.player = self.player, None
        if clear and player is not None:
            player.clear(Clear(all_groups=True))
        del player
        if self.host is not None:
            self.host.close(clear=clear)
            self.host = None


def serve(rank: int, port: int, pipe: Connection, stack: str, start: StartRank) -> None:
    """Answer the requests of the pipe. port: of the store that all ranks share. stack: the file for STACK_SIGNAL's answer."""
    with Path(stack).open("w", encoding="utf-8") as file:
        faulthandler.register(STACK_SIGNAL, file, all_threads=False)
        answer_all(rank, port, pipe, start)


def answer_all(rank: int, port: int, pipe: Connection, start: StartRank) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the parent, which closes the pipe
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the parent shows them where it runs the same code
    server = RankServer(rank, start(rank, TCPStore("127.0.0.1", port, is_master=False)))
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = server.answer(message)
        except Exception as error:  # noqa: BLE001 - the parent decides what the error means
            answer = RankError(rank, f"{type(error).__name__}: {error}")
        pipe.send(answer)
