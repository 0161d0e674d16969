"""The properties of the suite, by profile; each names the requirements that it shows."""

from __future__ import annotations

from reshard_conformance.profiles import (
    agreement,
    batch,
    core,
    efficient,
    large,
    lifecycle,
    mappings,
    segmented,
    soak,
    streams,
    strided,
)
from reshard_conformance.search.bench import Property

__all__ = ["PROPERTIES"]

PROPERTIES: dict[str, Property] = {
    prop.name: prop
    for prop in (
        *core.PROPERTIES,
        *mappings.PROPERTIES,
        *efficient.PROPERTIES,
        *batch.PROPERTIES,
        *lifecycle.PROPERTIES,
        *soak.PROPERTIES,
        *agreement.PROPERTIES,
        *streams.PROPERTIES,
        *large.PROPERTIES,
        *strided.PROPERTIES,
        *segmented.PROPERTIES,
    )
}
