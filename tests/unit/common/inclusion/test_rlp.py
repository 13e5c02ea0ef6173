import pytest
import rlp as library
from hypothesis import given
from hypothesis import strategies as st

from common.inclusion import rlp
from common.refusal import Refused

ITEMS = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=6), max_leaves=20)


@given(ITEMS)
def test_items_are_encoded_as_the_library_does_and_read_back(item: rlp.Item) -> None:
    encoded = rlp.encode(item)
    assert encoded == library.encode(item)
    assert rlp.decode(encoded) == item


@pytest.mark.parametrize(
    "encoded",
    ["", "8100", "b800", "b90000", "b80100", "c1", "8261", "6161", "f800", "c180ff", "bfffffffffffffffff", "c1" * 40],
)
def test_another_spelling_or_a_torn_one_is_refused(encoded: str) -> None:
    with pytest.raises(Refused):
        rlp.decode(bytes.fromhex(encoded))


@given(st.binary(max_size=40))
def test_rlp_round_trips(raw: bytes) -> None:
    try:
        item = rlp.decode(raw)
    except Refused:
        return
    assert rlp.encode(item) == raw
