from contextlib import suppress

import eth_abi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import abi
from common.refusal import Refused

# By ABI type: values, their encoding, and the decoder of one head word.
ASK = "(uint32,uint32,uint128,uint128)"
u32, u128 = st.integers(0, 2**32 - 1), st.integers(0, 2**128 - 1)


def ask_words(ask):
    return abi.static_struct(abi.uint(field) for field in ask)


def asks_at(data, word):
    return tuple(
        (
            abi.uint_at(row, 0, 32),
            abi.uint_at(row, 1, 32),
            abi.uint_at(row, 2, 128),
            abi.uint_at(row, 3, 128),
        )
        for row in abi.rows_at(data, word, 4)
    )


KINDS = {
    "uint256": (st.integers(0, 2**256 - 1), abi.uint, abi.uint_at),
    "uint64": (st.integers(0, 2**64 - 1), abi.uint, lambda data, word: abi.uint_at(data, word, 64)),
    "bool": (st.booleans(), abi.boolean, abi.boolean_at),
    "bytes32": (st.binary(min_size=32, max_size=32), abi.bytes32, abi.bytes32_at),
    "address": (
        st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex()),
        lambda shown: abi.address(bytes.fromhex(shown[2:])),
        lambda data, word: "0x" + abi.address_at(data, word).hex(),
    ),
    "bytes": (st.binary(max_size=100), abi.dynamic_bytes, abi.bytes_at),
    "string": (st.text(st.characters(exclude_categories=["Cs"]), max_size=40), abi.dynamic_string, abi.text_at),
    f"{ASK}[]": (
        st.lists(st.tuples(u32, u32, u128, u128), max_size=4).map(tuple),
        lambda asks: abi.array([ask_words(ask) for ask in asks]),
        asks_at,
    ),
}
arguments = st.lists(
    st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind][0])), max_size=8
)


@given(arguments)
def test_arguments_are_encoded_as_eth_abi_does(arguments):
    expected = eth_abi.encode([kind for kind, _ in arguments], [value for _, value in arguments])
    assert abi.encode(*[KINDS[kind][1](value) for kind, value in arguments]) == expected


@given(arguments)
def test_eth_abi_encodings_are_decoded(arguments):
    data = eth_abi.encode([kind for kind, _ in arguments], [value for _, value in arguments])
    decoded = [KINDS[kind][2](data, word) for word, (kind, _) in enumerate(arguments)]
    assert decoded == [value for _, value in arguments]


@given(st.lists(st.binary(max_size=100), max_size=5), u32)
def test_an_array_of_byte_strings_is_encoded_as_eth_abi_does(items, after):
    expected = eth_abi.encode(["bytes[]", "uint32"], [items, after])
    assert abi.encode(abi.array_of_dynamic([abi.dynamic_bytes(item) for item in items]), abi.uint(after)) == expected


@given(st.tuples(u32, u32, u128, u128), st.binary(max_size=40))
def test_static_struct_is_encoded_in_the_head(ask, signature):
    expected = eth_abi.encode([ASK, "bytes"], [ask, signature])
    assert abi.encode(ask_words(ask), abi.dynamic_bytes(signature)) == expected


@pytest.mark.parametrize(
    ("encoder", "value"),
    [
        (abi.uint, -1),
        (abi.uint, 2**256),
        (abi.bytes32, bytes(31)),
        (abi.bytes32, bytes(33)),
        (abi.address, bytes(19)),
        (abi.address, bytes(32)),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_not_encoded(encoder, value):
    with pytest.raises((ValueError, OverflowError)):
        encoder(value)


def words(*values):
    return b"".join(value.to_bytes(32, "big") if isinstance(value, int) else value for value in values)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        pytest.param(abi.uint_at, b"", id="no word"),
        pytest.param(abi.bytes32_at, bytes(31), id="part of a word"),
        pytest.param(lambda data, word: abi.uint_at(data, word, 32), words(2**32), id="uint wider than its type"),
        pytest.param(abi.boolean_at, words(2), id="bool that is 2"),
        pytest.param(abi.address_at, words(2**160), id="address with a dirty upper byte"),
        pytest.param(abi.bytes_at, words(64, 0), id="offset past the data"),
        pytest.param(abi.bytes_at, words(2**256 - 32, 0), id="offset beyond all memory"),
        pytest.param(abi.bytes_at, words(33, 0, 0), id="offset between words"),
        pytest.param(abi.bytes_at, words(0), id="offset of itself"),
        pytest.param(lambda data, word: abi.bytes_at(data, word, 2), words(32, 0), id="offset into the head"),
        pytest.param(lambda data, word: abi.text_at(data, word, 2), words(32, 0), id="string in the head"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 1, 2), words(32, 0), id="rows in the head"),
        pytest.param(abi.bytes_at, words(32, 33, 0), id="length past the data"),
        pytest.param(abi.bytes_at, words(32, 2**256 - 1, 0), id="length beyond all memory"),
        pytest.param(abi.bytes_at, words(32, 1) + b"\x01", id="padding left off"),
        pytest.param(abi.bytes_at, words(32, 1, b"\x01" + bytes(30) + b"\x01"), id="padding that is not zero"),
        pytest.param(abi.text_at, words(32, 1, b"\xff" + bytes(31)), id="string that is not UTF-8"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 4), words(32, 1, 0, 0, 0), id="rows past the data"),
        pytest.param(lambda data, word: abi.rows_at(data, word, 4), words(32, 2**255, 0), id="rows beyond all memory"),
    ],
)
def test_data_that_no_compiler_writes_is_refused(decode, data):
    with pytest.raises(Refused):
        decode(data, 0)


def test_large_offset_is_resolved():
    word = 31
    with pytest.raises(Refused, match="into the head"):
        abi.bytes_at(words(*[0] * word, 32 * word) + bytes(32 * word), word)


@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)), st.integers(0, 4))
def test_arbitrary_bytes_are_decoded_or_refused(data, kind, word):
    with suppress(Refused):
        KINDS[kind][2](data, word)
