"""Sealed results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import container, sealed_result
from common.box import SecretKey
from common.refusal import Refused
from tests.unit.common.test_container import sealed_of
from tests.vectors.sealing import OWNER, REGISTRY
from tests.vectors.vector_file import Case, cases, pattern

SECRET = SecretKey(b"\x09" * 32)
PLACE = (31337, REGISTRY, b"\x11" * 32)


def opened(case: Case) -> bytes:
    place = (case["chain_id"], bytes.fromhex(case["job_registry"]), bytes.fromhex(case["job_id"]))
    return sealed_result.open_result(SecretKey(bytes.fromhex(case["secret"])), *place, sealed_of(case))


@pytest.mark.parametrize("case", cases("result.json"), ids=lambda case: case["name"])
def test_result_vector(case: Case) -> None:
    if "refused" in case:
        with pytest.raises(Refused) as caught:
            opened(case)
        assert caught.value.code == case["refused"]
        return
    long = "plaintext_length" in case
    assert opened(case) == (pattern(case["plaintext_length"]) if long else bytes.fromhex(case["plaintext"]))


@given(st.binary(max_size=200), st.integers(1, 250))
def test_any_pieces_round_trip(plaintext: bytes, size: int) -> None:
    sealer = sealed_result.ResultSealer(SECRET.public, *PLACE)
    sealed = b"".join([sealer.push(plaintext[at : at + size]) for at in range(0, len(plaintext), size)])
    sealed += sealer.finish()
    opener = sealed_result.ResultOpener.with_secret(SECRET, *PLACE)
    pulled = b"".join([opener.pull(sealed[at : at + size]) for at in range(0, len(sealed), size)])
    assert pulled + opener.finish() == plaintext


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    sealed = sealed_result.seal_result(SECRET.public, *PLACE, b"out")
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            sealed_result.open_result(SECRET, *PLACE, changed)
    for length in range(len(sealed)):
        with pytest.raises(Refused):
            sealed_result.open_result(SECRET, *PLACE, sealed[:length])


def test_a_container_is_no_result_even_to_the_same_key() -> None:
    sealed = container.seal(SECRET.public, 31337, REGISTRY, OWNER, b"payload")
    with pytest.raises(Refused) as caught:
        sealed_result.open_result(SECRET, 31337, REGISTRY, OWNER + bytes(12), sealed)
    assert caught.value.code == "undecryptable"
