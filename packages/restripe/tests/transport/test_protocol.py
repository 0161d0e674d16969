"""Copies by address, and transports that take addresses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.transport.protocol import AddressCopy, takes_addresses

from ..helpers.recording_transports import AddressTransport, TensorTransport

MULTIPLES = st.builds(lambda unit, count: unit * count, st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 9))


@settings(max_examples=200)
@given(
    st.tuples(MULTIPLES, MULTIPLES, MULTIPLES),
    st.lists(st.tuples(st.sampled_from([3, 3, 1]), MULTIPLES, MULTIPLES), max_size=3),
)
def test_the_widest_unit_divides_addresses_length_and_every_stride_that_is_taken(
    addresses_and_length: tuple[int, int, int], dims: list[tuple[int, int, int]]
) -> None:
    into, out_of, length = addresses_and_length
    sizes, into_strides, out_strides = zip(*dims, (length, 1, 1), strict=True)
    copy = AddressCopy(into, out_of, sizes, into_strides, out_strides)
    numbers = [into, out_of, length, *(stride for size, *strides in dims if size > 1 for stride in strides)]
    for most in (16, 8, 1):
        units = [unit for unit in (1, 2, 4, 8, 16) if unit <= most and not any(number % unit for number in numbers)]
        assert copy.widest_unit(most) == max(units)


@pytest.mark.parametrize("missing", ["p2p", "collectives", "copies"])
def test_a_transport_takes_addresses_where_it_has_all_three_methods(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert takes_addresses(AddressTransport())
    assert not takes_addresses(TensorTransport())
    monkeypatch.delattr(AddressTransport, missing)
    assert not takes_addresses(AddressTransport())
