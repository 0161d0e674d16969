"""The errors that restripe raises, as one shallow tree.

    ReshardError
    |-- UnsupportedPlacementError   also NotImplementedError
    |-- InvalidPlacementError       also ValueError
    |-- LayoutError                 also ValueError
    |-- MissingTensorError          also ValueError
    |-- DeviceError                 also ValueError
    |-- DtypeError                  also ValueError
    |-- ShapeError                  also ValueError
    |-- AliasingError               also ValueError
    |-- AgreementError              also RuntimeError
    |-- PeerTimeoutError            also TimeoutError
    `-- CaptureError                also RuntimeError

Where several faults apply, the one that stands first here is raised. The message of each is one sentence that names the
rank, the tensor, what was expected, what came, and what to do.
"""


class ReshardError(Exception):
    """Base of every error that restripe raises on purpose."""


class UnsupportedPlacementError(ReshardError, NotImplementedError):
    """A placement of a kind that restripe does not move, such as Partial."""


class InvalidPlacementError(ReshardError, ValueError):
    """A shard dim that the tensor does not have."""


class LayoutError(ReshardError, ValueError):
    """A mesh and placements that do not fit each other or the group; an item named twice."""


class MissingTensorError(ReshardError, ValueError):
    """A tensor absent where its mesh has this rank, given where it has not, or no shape to plan from."""


class DeviceError(ReshardError, ValueError):
    """A tensor on another device than the group's."""


class DtypeError(ReshardError, ValueError):
    """A tensor of another dtype than the call's, here or on another rank."""


class ShapeError(ReshardError, ValueError):
    """A local or global shape other than the layout's, here or on another rank."""


class AliasingError(ReshardError, ValueError):
    """Source and destination share elements, or a destination's own elements share memory."""


class AgreementError(ReshardError, RuntimeError):
    """The ranks of a group made different calls."""


class PeerTimeoutError(ReshardError, TimeoutError):
    """A rank of the group is gone or late."""


class CaptureError(ReshardError, RuntimeError):
    """A call that a CUDA graph cannot record, or not safely."""


PRECEDENCE: tuple[type[ReshardError], ...] = (
    UnsupportedPlacementError,
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    DeviceError,
    DtypeError,
    ShapeError,
    AliasingError,
    AgreementError,
    PeerTimeoutError,
    CaptureError,
)
