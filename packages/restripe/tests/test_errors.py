"""The tree of errors: each is what the table of the specification says it also is, and the order is the table's."""

from __future__ import annotations

import pytest

from restripe import errors
from restripe.errors import PRECEDENCE, ReshardError

ALSO = {
    "UnsupportedPlacementError": NotImplementedError,
    "InvalidPlacementError": ValueError,
    "LayoutError": ValueError,
    "MissingTensorError": ValueError,
    "DeviceError": ValueError,
    "DtypeError": ValueError,
    "ShapeError": ValueError,
    "AliasingError": ValueError,
    "AgreementError": RuntimeError,
    "PeerTimeoutError": TimeoutError,
    "CaptureError": RuntimeError,
}


@pytest.mark.requirement("RS-ERROR-13")
@pytest.mark.parametrize("name", ALSO)
def test_each_error_has_its_two_bases(name: str) -> None:
    assert getattr(errors, name).__bases__ == (ReshardError, ALSO[name])


@pytest.mark.requirement("RS-ERROR-9", "RS-ERROR-13")
def test_the_order_is_the_table_s_and_leaves_none_out() -> None:
    assert [kind.__name__ for kind in PRECEDENCE] == list(ALSO)
    assert set(PRECEDENCE) == set(ReshardError.__subclasses__())


@pytest.mark.requirement("RS-ERROR-13")
def test_every_error_is_caught_as_one() -> None:
    assert all(issubclass(kind, ReshardError) for kind in PRECEDENCE)
    assert not any(kind in PRECEDENCE for kind in (ReshardError, ValueError))
