"""A communicator whose ranks are threads: all that golden needs of a transport, and nothing that forgives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

Result = TypeVar("Result")


@dataclass
class Board:
    """What the threads share: a barrier, and what each rank has put on the table."""

    size: int
    calls: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=30)
        self.slots: list[tuple[int, torch.Tensor] | None] = [None] * self.size


@dataclass(frozen=True)
class ThreadCommunicator:
    """One rank's end; `board.calls` records (root, bytes) of every broadcast."""

    rank: int
    board: Board

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def size(self) -> int:
        return self.board.size

    def broadcast(self, buffer: torch.Tensor, root: int, stream: torch.cuda.Stream | None = None) -> None:
        if buffer.dtype != torch.uint8 or buffer.ndim != 1 or not buffer.is_contiguous() or buffer.numel() == 0:
            raise AssertionError(f"not a flat nonempty uint8 buffer: {buffer.dtype}, {tuple(buffer.shape)}")
        self.board.slots[self.rank] = (root, buffer)
        self.board.barrier.wait()
        slots = [slot for slot in self.board.slots if slot is not None]
        if {(r, b.numel()) for r, b in slots} != {(root, buffer.numel())}:
            raise AssertionError(f"ranks differ: {[(r, b.numel()) for r, b in slots]}")
        if self.rank != root:
            buffer.copy_(slots[root][1])
        else:
            self.board.calls.append((root, buffer.numel()))
        self.board.barrier.wait()


@dataclass(frozen=True)
class Group:
    """The group that golden is handed."""

    communicator: ThreadCommunicator


def run(size: int, body: Callable[[ThreadCommunicator], Result]) -> tuple[list[Result], list[tuple[int, int]]]:
    """Run the body on every rank; its results by rank, and the broadcasts made. A rank that raises ends all."""
    board = Board(size)

    def rank_body(rank: int) -> Result:
        try:
            return body(ThreadCommunicator(rank, board))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank_body, rank) for rank in range(size)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures], board.calls
