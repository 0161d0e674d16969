"""What the suite and an implementation under test owe each other.

Everything is structural: an implementation defines these members and imports nothing of this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch.distributed.tensor.placement_types import Placement

__all__ = [
    "KINDS",
    "UNSUPPORTED",
    "Agreeing",
    "Batching",
    "Claims",
    "Communicator",
    "Counting",
    "Group",
    "Handing",
    "Implementation",
    "Item",
    "Level",
    "MeshReference",
    "Placements",
    "Profile",
    "ReshardCall",
    "SideArguments",
    "Stream",
    "TensorReference",
    "Work",
]

#: The kinds of error that a case may expect and that `Implementation.error_kind` may answer.
KINDS = ("placement", "layout", "shape", "dtype", "device", "missing", "aliasing", "agreement", "timeout")

#: What `error_kind` answers for an input that the implementation refuses because it does not claim it.
UNSUPPORTED = "unsupported"

Stream: TypeAlias = torch.cuda.Stream
Placements: TypeAlias = tuple[Placement, ...]


class Profile(StrEnum):
    """A part of the specification that an implementation claims as a whole."""

    CORE = "core"
    LARGE = "large"
    EFFICIENT = "efficient"
    BATCH = "batch"
    STREAMS = "streams"
    LIFECYCLE = "lifecycle"
    AGREEMENT = "agreement"
    FAULTS = "faults"
    STRIDED = "strided"
    SEGMENTED = "segmented"


class Level(IntEnum):
    """How much of core is claimed; each level holds the ones below it, and core is L3."""

    L0 = 0
    """Even shards, disjoint meshes, one sharded mesh dim."""
    L1 = 1
    """Several mesh dims, also on one tensor dim, ranks in any order."""
    L2 = 2
    """Uneven and empty shards."""
    L3 = 3
    """Overlapping, equal and subset meshes, idle ranks, non-contiguous local tensors, every dtype."""


@dataclass(frozen=True)
class Claims:
    """What an implementation says that it can do; what it claims and fails is a failure.

    level: how much of core it claims.
    profiles: the profiles that it claims.
    worlds: the worlds in which it can be judged, by name.
    """

    level: Level
    profiles: frozenset[Profile]
    worlds: frozenset[str] = frozenset({"sim", "gloo", "nccl"})

    def __post_init__(self) -> None:
        if not isinstance(self.level, Level):
            raise TypeError(f"Claims.level: expected a Level, got {self.level!r}")
        for profile in self.profiles:
            if not isinstance(profile, Profile):
                raise TypeError(f"Claims.profiles: expected members of Profile, got {profile!r}")


class Communicator(Protocol):
    """The transport protocol: what a group's `communicator` can do. Buffers are flat, contiguous, nonempty uint8 tensors."""

    @property
    def rank(self) -> int:
        """This rank's number."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def device(self) -> torch.device:
        """Where buffers live."""

    def group(self) -> AbstractContextManager[None]:
        """What is called inside is submitted together at its end; on an exception nothing is submitted."""

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        """Send `buffer` to `peer`; the k-th send to a rank meets that rank's k-th receive from here."""

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        """Fill `buffer` with what `peer` sends."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        """Gather equal counts by rank; `input` may be this rank's part of `output`."""

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        """Copy the root's `buffer` into every member's, in place."""

    def exchange(self, record: bytes) -> list[bytes]:
        """Gather small records on the host, by rank; blocks the host."""

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Make one communicator a color, members ordered by (key, rank); None joins none and gets None. Collective."""

    def finalize(self) -> None:
        """End the communicator together with all its members."""

    def destroy(self) -> None:
        """Release the communicator."""

    def abort(self) -> None:
        """Release the communicator without waiting for anybody."""


class Group(Protocol):
    """The process group that an implementation is handed; weakly referenceable, hashable by identity.

    A gloo group also has `process_group` (a torch.distributed process group), an nccl group `nccl_communicator` (nccl4py's).
    """

    @property
    def rank(self) -> int:
        """This rank's number in the group."""

    @property
    def size(self) -> int:
        """The number of ranks of the group."""

    @property
    def traced(self) -> bool:
        """Whether the trace is judged: then all work has to go through `communicator`."""

    @property
    def communicator(self) -> Communicator:
        """A communicator over all ranks of the group."""


class TensorReference(Protocol):
    """A light reference to a distributed tensor: global shape, dtype, device, and this rank's part of it."""

    @property
    def shape(self) -> torch.Size:
        """The global shape."""

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""

    @property
    def device(self) -> torch.device:
        """Where the local tensor is."""

    @property
    def _local_tensor(self) -> torch.Tensor | None:
        """This rank's shard, or None on a rank that has no part in either side."""


class MeshReference(Protocol):
    """A light mesh: an int64 tensor of ranks of the group."""

    @property
    def mesh(self) -> torch.Tensor:
        """The ranks, of the mesh's shape."""

    @property
    def _mesh(self) -> torch.Tensor:
        """The same ranks, under the other name that callers use."""

    @property
    def ndim(self) -> int:
        """The number of mesh dims."""


#: The first six arguments of a `ReshardCall`: tensor, mesh and placements of the source, then of the destination.
SideArguments: TypeAlias = tuple[
    TensorReference | None,
    MeshReference,
    Placements,
    TensorReference | None,
    MeshReference,
    Placements,
]

#: One tensor of a batch: its name, then its side arguments.
Item: TypeAlias = tuple[str, *SideArguments]

Result_co = TypeVar("Result_co", covariant=True)


class ReshardCall(Protocol[Result_co]):
    """A method with the eight arguments of a reshard."""

    def __call__(
        self,
        src_tensor: TensorReference | None,
        src_mesh: MeshReference,
        src_placement: Placements,
        dst_tensor: TensorReference | None,
        dst_mesh: MeshReference,
        dst_placement: Placements,
        process_group: Group,
        stream: Stream | None = None,
    ) -> Result_co:
        """Reshard one tensor."""


class Implementation(Protocol):
    """An implementation under test. The hooks below it are optional, one a profile."""

    @property
    def name(self) -> str:
        """The name that the certificate bears."""

    @property
    def version(self) -> str:
        """The version that the certificate bears."""

    @property
    def claims(self) -> Claims:
        """What it claims."""

    @property
    def reshard(self) -> ReshardCall[None]:
        """Fill the destination's local tensors from the source's; return when a CPU destination is complete."""

    def clear_caches(self, group: Group) -> None:
        """Drop every cached plan, and every communicator made from the group; collective."""

    def error_kind(self, exception: BaseException) -> str | None:
        """The kind of error (one of KINDS, or UNSUPPORTED) that `exception` is, or None when it is no refusal."""


@runtime_checkable
class Batching(Protocol):
    """The hook of profile batch."""

    def reshard_many(self, items: Sequence[Item], group: Group) -> None:
        """Reshard many tensors in one call."""


class Work(Protocol):
    """A handle on transfers that were enqueued."""

    def wait(self) -> object:
        """Let what is enqueued on the current stream from now on see the destination's values."""

    def is_completed(self) -> bool:
        """Whether the destination holds its values."""


@runtime_checkable
class Handing(Protocol):
    """The hook of profile streams, for implementations that give work handles."""

    @property
    def reshard_work(self) -> ReshardCall[Work]:
        """Do as `reshard` does, and give a handle."""


@runtime_checkable
class Agreeing(Protocol):
    """The hook of profile agreement."""

    def set_check(self, group: Group, mode: str) -> None:
        """Choose "first", "always" or "off" for the calls that follow on the group."""


@runtime_checkable
class Counting(Protocol):
    """The hook of profile lifecycle."""

    def live_communicators(self, group: Group) -> int:
        """How many communicators made from the group are alive on this rank."""
