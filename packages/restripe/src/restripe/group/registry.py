"""The table that finds a group's state, all that a module of restripe holds of groups, and what becomes of lost ones."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any

import torch.distributed as dist

from restripe.errors import LayoutError
from restripe.group.state import State

_states: dict[int, State] = {}  # by the group's id, which goes with the group: found faster than in a weak table
_numbers = count()
_orphans: deque[State] = deque()
_lock = threading.Lock()


def state(group: Any) -> State:
    """The group's state, made at its first use."""
    if _orphans:
        release()
    return _states.get(id(group)) or _made(group)


def _made(group: Any) -> State:
    with _lock:
        found = _states.get(id(group))
        if found is None:
            found = State(next(_numbers))
            try:
                weakref.finalize(group, _lost, id(group), found).atexit = False
            except TypeError as error:
                raise LayoutError(
                    f"expected a torch process group or an object with a .communicator, got {type(group).__name__}; "
                    "it must allow weak references"
                ) from error
            _states[id(group)] = found
            if not found.number:
                atexit.register(_exit)
    return found


def _lost(number: int, found: State) -> None:
    """A group is collected, on whichever thread, where no communicator may be touched: only queue the release."""
    _states.pop(number, None)
    _orphans.append(found)


def _exit() -> None:
    """Release every communicator before the interpreter goes: a transport's threads must not outlive it."""
    for found in states():
        with suppress(Exception):  # the others are left
            found.abort()


def release() -> None:
    """Release what groups that no longer exist have left, without waiting for any other rank."""
    while True:
        try:
            orphan = _orphans.popleft()
        except IndexError:  # asked rather than looked at first: another thread may take the last one
            return
        with suppress(Exception):  # whoever calls now has no part in it
            orphan.abort()


def states() -> list[State]:
    """The states of all groups that exist, in order of creation."""
    release()
    with _lock:
        return sorted(_states.values(), key=lambda found: found.number)


def default_group() -> dist.ProcessGroup:
    """The torch process group that stands for None."""
    group = dist.group.WORLD
    if group is None:
        raise LayoutError(
            "no process group was given and torch.distributed has none; pass one or call init_process_group"
        )
    return group
