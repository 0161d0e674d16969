"""Exact resharding of distributed tensors between layouts."""

from restripe.api import Refit, Resharder, clear_caches, reshard
from restripe.arguments import Item, TensorRef
from restripe.joining import join
from restripe.layout import Layout, Mesh
from restripe.segmented import Segmented
from restripe.streams import Work

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
