"""Exact resharding of distributed tensors between layouts."""

from restripe.api import Refit, Resharder, clear_caches, reshard
from restripe.execution.streams import Work
from restripe.group.inputs import Item, TensorRef
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented
from restripe.transport.join import join

__all__ = [
    "Item",
    "Layout",
    "Mesh",
    "Refit",
    "Resharder",
    "Segmented",
    "TensorRef",
    "Work",
    "clear_caches",
    "join",
    "reshard",
]
__version__ = "0.1.0"
