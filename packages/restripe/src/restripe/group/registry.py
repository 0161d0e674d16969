"""The registry of group states, the only thing that a module of restripe holds, and the release of collected groups."""

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

_states: dict[int, State] = {}  # by the group's id, removed when the group is collected; faster than a weak table
_numbers = count()
_orphans: deque[State] = deque()
_lock = threading.Lock()


def state_of(group: Any) -> State:
    """Return the group's state, made at its first use."""
    if _orphans:
        release_orphans()
    return _states.get(id(group)) or _new_state(group)


def _new_state(group: Any) -> State:
    with _lock:
        state = _states.get(id(group))
        if state is None:
            state = State(next(_numbers))
            try:
                weakref.finalize(group, _orphan, id(group), state).atexit = False
            except TypeError as error:
                raise LayoutError(
                    f"expected a torch process group or an object with a .communicator, got {type(group).__name__}; "
                    "it must allow weak references"
                ) from error
            _states[id(group)] = state
            if not state.number:
                atexit.register(_abort_all)
    return state


def _orphan(group_id: int, state: State) -> None:
    """Queue the release of a collected group: on this thread, whichever it is, no communicator may be touched."""
    _states.pop(group_id, None)
    _orphans.append(state)


def _abort_all() -> None:
    """Release every communicator before the interpreter goes: a transport's threads must not outlive it."""
    for state in all_states():
        with suppress(Exception):  # a failure keeps no other group from being released
            state.abort()


def release_orphans() -> None:
    """Release what collected groups have left, without waiting for any other rank."""
    while True:
        try:
            orphan = _orphans.popleft()
        except IndexError:  # not tested beforehand: another thread may take the last one
            return
        with suppress(Exception):  # the caller has no part in the failure
            orphan.abort()


def all_states() -> list[State]:
    """Return the states of all groups that exist, in order of creation."""
    release_orphans()
    with _lock:
        return sorted(_states.values(), key=lambda state: state.number)


def default_group() -> dist.ProcessGroup:
    """Return the torch process group that stands for None."""
    group = dist.group.WORLD
    if group is None:
        raise LayoutError(
            "no process group was given and torch.distributed has none; pass one or call init_process_group"
        )
    return group
