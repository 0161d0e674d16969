"""Profile large: tensors, shards and messages of more elements than 32 bits can count."""

from __future__ import annotations

from hypothesis import strategies as st

from reshard_conformance.case.files import Batch, Case, Side
from reshard_conformance.contract import Batching, Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]

#: 2**31 bytes and a few more; no dim is even.
SHAPE = (65537, 32769)
#: Source and destination, over ranks 0 and 1: noncontiguous pieces, then one message, shard and broadcast of it all.
LAYOUTS = (
    (Side((0, 1), ("S(0)",)), Side((0, 1), ("S(1)",))),
    (Side((0,), ("R",)), Side((1,), ("R",))),
    (Side((0,), ("R",)), Side((0, 1), ("R",))),
)


def vast(space: Space) -> st.SearchStrategy[Script]:
    """Return a script of each layout once; nothing is drawn."""
    return st.just(tuple(Case(least(space), SHAPE, "uint8", src, dst) for src, dst in LAYOUTS))


def vast_batch(space: Space) -> st.SearchStrategy[Script]:
    """Return a script of one call with more than 2**32 bytes."""
    return st.just((Batch((Case(least(space), SHAPE, "uint8", *LAYOUTS[0]),) * 3),))


def least(space: Space) -> int:
    return min((size for size in space.sizes if size > 1), default=1)


def judge_batch(bench: Bench, script: Script) -> None:
    """Play the batch in one call, or case by case for an implementation without batches."""
    if isinstance(bench.loaded, Batching):
        bench.play(script)
        return
    bench.play(tuple(case for step in script if isinstance(step, Batch) for case in step.cases))


PROPERTIES: tuple[Property, ...] = (
    Drawn("vast", Profile.LARGE, {"RS-LAYOUT-9": ()}, lambda space, _: vast(space), Bench.play),
    Drawn("vast-batch", Profile.LARGE, {"RS-BATCH-5": ()}, lambda space, _: vast_batch(space), judge_batch),
)
