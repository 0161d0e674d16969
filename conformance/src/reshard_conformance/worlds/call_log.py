"""Reads NCCL's call log (NCCL_DEBUG=INFO) as trace events: a rank's calls, recorded outside of the implementation.

NCCL writes a line for each call, with pointers that differ from rank to rank. A communicator's id here is equal on all
its members: it consists of the group's id and the count and color of each split since.

An all-gather over a group's own communicator counts as an exchange of records, since the log cannot tell records from
data. A rank that joins no color of a split leaves no line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from reshard_conformance.judge.trace import Event, EventLog

__all__ = ["NCCL_SETTINGS", "CallLog"]

#: Environment variables to set before NCCL is first called. Older releases have no DESTROY, and log it as INIT.
NCCL_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL,P2P,DESTROY"}

#: Bytes per element, by ncclDataType_t.
DTYPE_SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}
OPS = {"Send": "send", "Recv": "recv", "AllGather": "all_gather", "Broadcast": "broadcast"}

CALL = re.compile(
    r"NCCL INFO (?P<name>\w+): opCount \w+ .*\bcount (?P<count>\d+) datatype (?P<type>\d+) .*\broot (?P<root>-?\d+) "
    r"comm (?P<comm>0x[0-9a-f]+)"
)
SPLIT = re.compile(
    r"NCCL INFO .*\bcomm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<members>\d+) .*\bparent (?P<parent>0x[0-9a-f]+) "
    r"(?:splitCount|childCount) (?P<count>\d+) color (?P<color>-?\d+) key -?\d+ ?- Init COMPLETE"
)
END = re.compile(r"NCCL INFO .*\bcomm (?P<comm>0x[0-9a-f]+) rank .* - (?P<op>Destroy|Abort) COMPLETE")


@dataclass
class WatchedCommunicator:
    """A communicator of this rank: its id, number of members, this rank's number in it, and the number of its calls.

    root: it is a group's own communicator, not made by a split.
    """

    name: str
    members: int
    rank: int
    log: EventLog
    calls: int = 0
    root: bool = False


class CallLog:
    """The calls of this process on watched communicators and their splits, read from the file that NCCL appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.partial_line = ""
        self.communicators: dict[int, WatchedCommunicator] = {}

    def watch(self, pointer: int, name: str, rank: int, members: int, log: EventLog) -> None:
        """Record calls on a group's own communicator under `name` from now on; earlier calls keep the earlier name."""
        self.read()
        self.communicators[pointer] = WatchedCommunicator(name, members, rank, log, root=True)

    def ignore(self, pointer: int) -> None:
        """Ignore calls on a communicator from now on."""
        self.read()
        self.communicators.pop(pointer, None)

    def read(self) -> None:
        """Parse what was appended to the file since the last call."""
        if not self.path.exists():  # NCCL makes the file at its first line
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.seek(self.offset)
            text = self.partial_line + file.read()
            self.offset = file.tell()
        *lines, self.partial_line = text.split("\n")
        for line in lines:
            self.parse_line(line)

    def parse_line(self, line: str) -> None:
        """Parse one line; most lines are about no call."""
        if "opCount" in line and (match := CALL.search(line)):
            self.add_call(match)
        elif "COMPLETE" in line and (match := SPLIT.search(line)):
            self.add_split(match)
        elif "COMPLETE" in line and (match := END.search(line)):
            communicator = self.communicators.pop(int(match["comm"], 16), None)
            if communicator is not None:
                self.add_event(communicator, match["op"].lower())

    def add_call(self, match: re.Match[str]) -> None:
        communicator = self.communicators.get(int(match["comm"], 16))
        if communicator is None:
            return
        op = OPS.get(match["name"], match["name"])
        if op == "all_gather" and communicator.root:
            op = "exchange"
        peer = int(match["root"]) if op in {"send", "recv", "broadcast"} else None
        self.add_event(communicator, op, peer, int(match["count"]) * DTYPE_SIZES[int(match["type"])])

    def add_split(self, match: re.Match[str]) -> None:
        parent = self.communicators.get(int(match["parent"], 16))
        if parent is None:
            return
        name = f"{parent.name}/{match['count']}.{match['color']}"
        self.communicators[int(match["comm"], 16)] = WatchedCommunicator(
            name, int(match["members"]), int(match["rank"]), parent.log
        )
        self.add_event(parent, "split", made=name)

    def add_event(
        self,
        communicator: WatchedCommunicator,
        op: str,
        peer: int | None = None,
        nbytes: int | None = None,
        made: str | None = None,
    ) -> None:
        event = Event(
            op, communicator.name, communicator.members, communicator.rank, communicator.calls, peer, nbytes, made=made
        )
        communicator.calls += 1
        communicator.log.events.append(event)
