"""Reads NCCL's own call log (NCCL_DEBUG=INFO) as trace events, so that a rank's calls are seen from outside.

NCCL writes a line for each call, with pointers that differ from rank to rank. A communicator's id here is equal on all its
members: it follows from the group that it came from, and from the count and colour of each split on the way.

An all-gather over a group's own communicator counts as an exchange of records, since records and data look alike there.
A rank that joins no colour of a split leaves no line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from reshard_conformance.trace import Event, Log

__all__ = ["SETTINGS", "CallLog"]

#: What NCCL has to be told before it is first called. Older releases know no DESTROY, and log it as INIT.
SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL,P2P,DESTROY"}

#: ncclDataType_t as bytes an element.
SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}
OPS = {"Send": "send", "Recv": "recv", "AllGather": "all_gather", "Broadcast": "broadcast"}

CALL = re.compile(
    r"NCCL INFO (?P<name>\w+): opCount \w+ .*\bcount (?P<count>\d+) datatype (?P<type>\d+) .*\broot (?P<root>-?\d+) "
    r"comm (?P<comm>0x[0-9a-f]+)"
)
SPLIT = re.compile(
    r"NCCL INFO .*\bcomm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<members>\d+) .*\bparent (?P<parent>0x[0-9a-f]+) "
    r"(?:splitCount|childCount) (?P<count>\d+) color (?P<color>-?\d+) key -?\d+ ?- Init COMPLETE"
)
END = re.compile(r"NCCL INFO .*\bcomm (?P<comm>0x[0-9a-f]+) rank .* - (?P<how>Destroy|Abort) COMPLETE")


@dataclass
class Known:
    """A communicator of this rank: its id, its members, this rank's number in it, and how many calls it has seen."""

    name: str
    members: int
    rank: int
    log: Log
    calls: int = 0
    own: bool = False


class CallLog:
    """The calls of this process, as NCCL appends them to a file; communicators that nobody named are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = 0
        self.rest = ""
        self.known: dict[int, Known] = {}

    def name(self, pointer: int, name: str, rank: int, members: int, log: Log) -> None:
        """Call a group's own communicator by a name from now on; what was called on it so far is over."""
        self.read()
        self.known[pointer] = Known(name, members, rank, log, own=True)

    def forget(self, pointer: int) -> None:
        """Leave out what is called on a communicator from now on."""
        self.read()
        self.known.pop(pointer, None)

    def read(self) -> None:
        """Take in what was appended since the last time."""
        if not self.path.exists():  # NCCL makes the file at its first line
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.seek(self.place)
            text = self.rest + file.read()
            self.place = file.tell()
        *lines, self.rest = text.split("\n")
        for line in lines:
            self.take(line)

    def take(self, line: str) -> None:
        """Take in one line; most lines tell of no call."""
        if "opCount" in line and (match := CALL.search(line)):
            self.call(match)
        elif "COMPLETE" in line and (match := SPLIT.search(line)):
            self.split(match)
        elif "COMPLETE" in line and (match := END.search(line)):
            known = self.known.pop(int(match["comm"], 16), None)
            if known is not None:
                self.note(known, match["how"].lower())

    def call(self, match: re.Match[str]) -> None:
        known = self.known.get(int(match["comm"], 16))
        if known is None:
            return
        op = OPS.get(match["name"], match["name"])
        if op == "all_gather" and known.own:
            op = "exchange"
        peer = int(match["root"]) if op in {"send", "recv", "broadcast"} else None
        self.note(known, op, peer, int(match["count"]) * SIZES[int(match["type"])])

    def split(self, match: re.Match[str]) -> None:
        parent = self.known.get(int(match["parent"], 16))
        if parent is None:
            return
        name = f"{parent.name}/{match['count']}.{match['color']}"
        self.known[int(match["comm"], 16)] = Known(name, int(match["members"]), int(match["rank"]), parent.log)
        self.note(parent, "split", made=name)

    def note(
        self, known: Known, op: str, peer: int | None = None, nbytes: int | None = None, made: str | None = None
    ) -> None:
        event = Event(op, known.name, known.members, known.rank, known.calls, peer, nbytes, made=made)
        known.calls += 1
        known.log.events.append(event)
