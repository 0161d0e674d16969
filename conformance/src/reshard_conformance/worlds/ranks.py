"""What a rank process does: it opens sessions, plays steps and reports, until its pipe ends."""

from __future__ import annotations

import faulthandler
import signal
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from reshard_conformance.cases import Clear, parse
from reshard_conformance.contract import Communicator, Group, Implementation
from reshard_conformance.loading import locate
from reshard_conformance.oracle import Truth
from reshard_conformance.playing import Options, Player, RankReport, cases_of
from reshard_conformance.trace import Log, Tracer
from reshard_conformance.worlds.transport import GlooCommunicator

__all__ = ["WHERE", "Closing", "Opening", "Playing", "Trouble", "serve"]

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


class GlooGroup:
    """A group of the gloo world, as one rank sees it."""

    def __init__(self, process_group: dist.ProcessGroup, communicator: Tracer, *, traced: bool) -> None:
        self.process_group, self.communicator, self.traced = process_group, communicator, traced
        self.rank, self.size = communicator.rank, communicator.size


class GlooHost:
    """Makes the groups of one rank in one session, over a default process group of its own."""

    def __init__(self, store: Store, rank: int, opening: Opening) -> None:
        self.rank, self.size, self.traced = rank, opening.size, opening.traced
        self.store = PrefixStore(f"session {opening.number}", store)
        self.timeout = timedelta(seconds=opening.timeout)
        dist.init_process_group("gloo", store=self.store, rank=rank, world_size=self.size, timeout=self.timeout)

    def make(self, serial: int, log: Log) -> GlooGroup:
        process_group = cast("dist.ProcessGroup", dist.new_group(timeout=self.timeout))
        store = PrefixStore(f"suite {serial}", self.store)
        communicator: Communicator = GlooCommunicator(store, self.rank, self.size, self.timeout)
        return GlooGroup(process_group, Tracer(communicator, log, str(serial)), traced=self.traced)

    def release(self, group: Group) -> None:
        if isinstance(group, GlooGroup):
            group.communicator.inner.destroy()
            dist.destroy_process_group(group.process_group)

    def close(self) -> None:
        dist.destroy_process_group()


class RankServer:
    """The session that is open in this process, if any."""

    def __init__(self, rank: int, store: Store) -> None:
        self.rank, self.store = rank, store
        self.host: GlooHost | None = None
        self.player: Player | None = None

    def answer(self, message: object) -> object:
        if isinstance(message, Playing):
            return self.play(message)
        if isinstance(message, Opening):
            self.open(message)
        if isinstance(message, Closing):
            self.close(clear=message.clear)
        return None

    def open(self, opening: Opening) -> None:
        implementation = cast("Implementation", locate(opening.place))
        self.host = GlooHost(self.store, self.rank, opening)
        self.player = Player(self.rank, implementation, self.host)

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
            self.host.close()
            self.host = None


def serve(rank: int, port: int, pipe: Connection, stack: str) -> None:
    """Answer the messages of the pipe. port: of the store that all ranks share. stack: the file for WHERE's answer."""
    with Path(stack).open("w", encoding="utf-8") as file:
        faulthandler.register(WHERE, file, all_threads=False)
        answer_all(rank, port, pipe)


def answer_all(rank: int, port: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, whose end closes the pipe
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the parent's process shows them where it runs the same code
    server = RankServer(rank, TCPStore("127.0.0.1", port, is_master=False))
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
