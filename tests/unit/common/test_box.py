"""X25519 keys and sealed boxes."""

import pytest
from nacl import bindings

from common.box import SEAL_OVERHEAD_BYTES, PublicKey, SecretKey, open_sealed, seal
from common.refusal import Refused
from tests.vectors.vector_file import Case, cases

WHY = {"low_order": "low-order", "length": "must have 32 bytes"}


def named(case: Case) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", [case for case in cases("sealed_box_keys.json") if "public" in case], ids=named)
def test_public_key_vector(case: Case) -> None:
    raw = bytes.fromhex(case["public"])
    if "refused" in case:
        with pytest.raises(Refused, match=WHY[case["refused"]]):
            PublicKey(raw)
    else:
        assert SecretKey(bytes.fromhex(case["secret"])).public == PublicKey(raw)


@pytest.mark.parametrize("case", [case for case in cases("sealed_box_keys.json") if "sealed" in case], ids=named)
def test_sealed_box_vector(case: Case) -> None:
    opened = open_sealed(SecretKey(bytes.fromhex(case["secret"])), bytes.fromhex(case["sealed"]))
    assert opened == (None if "refused" in case else bytes.fromhex(case["plaintext"]))


def test_refused_points_are_those_of_libsodium() -> None:
    points = [case["public"] for case in cases("sealed_box_keys.json") if case.get("refused") == "low_order"]
    assert len(points) == 14  # with the top bit, which X25519 ignores, set and not set
    for point in points:
        with pytest.raises(RuntimeError):
            bindings.crypto_scalarmult(b"\x01" * 32, bytes.fromhex(point))


def test_sealed_box_opens_and_has_the_documented_length() -> None:
    secret = SecretKey.generate()
    sealed = seal(secret.public, b"a message")
    assert len(sealed) == len(b"a message") + SEAL_OVERHEAD_BYTES
    assert open_sealed(secret, sealed) == b"a message"
    assert open_sealed(SecretKey.generate(), sealed) is None


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(Refused, match="32 bytes"):
        SecretKey(bytes(length))


def test_a_secret_key_does_not_print_itself() -> None:
    secret = SecretKey(b"\x05" * 32)
    assert repr(secret) == str(secret) == f"{secret}" == "<SECRET>"
