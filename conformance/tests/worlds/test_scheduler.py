"""Ranks run one at a time, always in the same order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from reshard_conformance.worlds.scheduler import Hang, RankScheduler, ThreadPool

Ended = dict[int, str]


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool()
    yield pool
    pool.close()


def never(reasons: dict[int, str], ended: object) -> None:
    raise AssertionError(f"there is no deadlock here: {reasons}, {ended}")


def test_results_come_by_rank(pool: ThreadPool) -> None:
    scheduler: RankScheduler[int] = RankScheduler(pool, 3, lambda reasons, ended: None, 5.0)
    assert scheduler.run([partial(int, rank * 10) for rank in range(3)]) == [0, 10, 20]


def reached(counts: list[int], place: int, least: int) -> bool:
    return counts[place] >= least


def walk(pool: ThreadPool, seed: int) -> list[tuple[int, int]]:
    """The order in which four ranks make ten steps, each waiting for a random rank to have come as far."""
    done = [0] * 4
    order: list[tuple[int, int]] = []
    scheduler: RankScheduler[str] = RankScheduler(pool, 4, never, 5.0)

    def body(rank: int) -> str:
        draws = random.Random(seed + rank)
        for step in range(10):
            other = draws.randrange(4)
            scheduler.wait(rank, partial(reached, done, other, step), "the other")
            order.append((rank, step))
            done[rank] += 1
        return "ended"

    scheduler.run([partial(body, rank) for rank in range(4)])
    return order


@pytest.mark.parametrize("seed", range(5))
def test_the_same_run_has_the_same_order(pool: ThreadPool, seed: int) -> None:
    first = walk(pool, seed)
    assert len(first) == 40
    assert walk(pool, seed) == first


def test_only_one_rank_runs_at_a_time(pool: ThreadPool) -> None:
    inside = threading.Lock()
    turns: list[int] = []
    total = [0]
    scheduler: RankScheduler[bool] = RankScheduler(pool, 3, never, 5.0)

    def body(rank: int) -> bool:
        alone = True
        for turn in range(20):
            alone &= inside.acquire(blocking=False)
            turns.append(rank)
            total[0] += 1
            inside.release()
            scheduler.wait(rank, partial(reached, total, 0, 3 * turn + 3), "the others")
        return alone

    assert scheduler.run([partial(body, rank) for rank in range(3)]) == [True] * 3
    assert turns[:6] == [0, 1, 2, 2, 0, 1]  # rank 2, with which a round is full, goes on


def test_a_deadlock_is_reported_at_once(pool: ThreadPool) -> None:
    freed = [False]
    seen: list[tuple[dict[int, str], Ended]] = []

    def on_deadlock(reasons: dict[int, str], ended: Ended) -> None:
        seen.append((reasons, ended))
        freed[0] = True

    scheduler: RankScheduler[str] = RankScheduler(pool, 3, on_deadlock, 5.0)

    def body(rank: int) -> str:
        if rank != 1:
            scheduler.wait(rank, lambda: freed[0], f"godot {rank}")
        return f"end {rank}"

    assert scheduler.run([partial(body, rank) for rank in range(3)]) == ["end 0", "end 1", "end 2"]
    assert seen == [({0: "godot 0", 2: "godot 2"}, {1: "end 1"})]


def spin(rank: int, scheduler: RankScheduler[None]) -> None:
    if rank == 0:
        scheduler.wait(0, lambda: False, "rank 1 to end")
    while True:
        pass


def test_a_rank_that_never_blocks_is_interrupted(pool: ThreadPool) -> None:
    scheduler: RankScheduler[None] = RankScheduler(pool, 2, never, 0.2)
    threads = pool.take(2)
    bodies: list[Callable[[], None]] = [partial(spin, rank, scheduler) for rank in range(2)]
    with pytest.raises(Hang, match=r"no end within 0\.2 s: rank 0 waits for rank 1 to end, rank 1 runs .*\(spin\)"):
        scheduler.run(bodies)
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()
    assert RankScheduler[int](pool, 2, lambda reasons, ended: None, 5.0).run([lambda: 1, lambda: 2]) == [1, 2]


def test_threads_outlast_a_run(pool: ThreadPool) -> None:
    scheduler: RankScheduler[int | None] = RankScheduler(pool, 3, lambda reasons, ended: None, 5.0)
    runs = [scheduler.run([lambda: threading.current_thread().ident] * 3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3
