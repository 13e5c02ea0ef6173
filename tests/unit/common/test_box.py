"""X25519 keys, sealed boxes, the escrow's evidence, and the keys derived with HKDF."""

import pytest
from nacl import bindings

from common import key_derivation
from common.box import SEAL_OVERHEAD_BYTES, PublicKey, SecretKey, open_sealed, seal
from common.escrow_evidence import mock_measurement, report_data
from common.escrow_handover import HandedOverKey, Handover, handover_content
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


CASES = cases("handover.json")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_message_reads_as_its_vector_says(case):
    message = bytearray.fromhex(case["message"])
    if "refused" in case:
        with pytest.raises(Refused) as refused:
            Handover.parse(message)
        assert refused.value.code == case["refused"]
        return
    read = Handover.parse(message)
    keys = [HandedOverKey(bytearray.fromhex(key["secret"]), key["announced_from"]) for key in case["keys"]]
    assert (read.release, list(read.keys)) == (case["release"], keys)
    assert handover_content(read.release, keys) == read.content
    assert read.content + read.signature == message


def test_secrets_show_in_no_repr():
    key = HandedOverKey(bytearray(b"K" * 32), 1)
    assert "K" * 8 not in repr(key)
    assert "K" * 8 not in repr(Handover.parse(handover_content(1, [key]) + bytes(65)))


@pytest.mark.parametrize("case", cases("escrow_evidence.json"), ids=lambda case: case["name"])
def test_evidence_is_bound_as_its_vector_says(case):
    if case["kind"] == "report_data":
        assert report_data(PublicKey(bytes.fromhex(case["public"]))).hex() == case["report_data"]
    else:
        assert mock_measurement(case["release"]).hex() == case["measurement"]


DERIVATION_WHY = {"length": "must have 65 bytes", "signature_v": "v must be 27 or 28"}


def raw(case: Case, name: str) -> bytes:
    return bytes.fromhex(case[name])


def derived(case: Case) -> tuple[str, str | None]:
    if case["kind"] in ("data_key", "result_data_key"):
        place = (int(case["chain_id"]), raw(case, "job_registry"))
        if case["kind"] == "data_key":
            return key_derivation.data_key(raw(case, "seed"), *place, raw(case, "owner")).hex(), None
        return key_derivation.result_data_key(raw(case, "seed"), *place, raw(case, "job_id")).hex(), None
    if case["kind"] == "result_key":
        secret = key_derivation.result_key_from_signature(raw(case, "signature"))
    else:
        secret = key_derivation.escrow_key(raw(case, "operator_key"))
    return secret.raw.hex(), secret.public.raw.hex()


@pytest.mark.parametrize("case", cases("derivation.json"), ids=lambda case: case["name"])
def test_derivation_vector(case: Case) -> None:
    if "refused" in case:
        with pytest.raises(ValueError, match=DERIVATION_WHY[case["refused"]]):
            derived(case)
    else:
        assert derived(case) == (case["key"], case.get("public"))


def test_hkdf_gives_the_published_output() -> None:
    # RFC 5869, test case 3 (no salt, no info)
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert key_derivation.hkdf_sha256(b"\x0b" * 22, b"").hex() == expected


@pytest.mark.parametrize(
    ("seed", "registry", "bound"), [(31, 20, 20), (33, 20, 20), (32, 19, 20), (32, 21, 20), (32, 20, 21), (32, 20, 0)]
)
def test_field_boundaries_cannot_shift(seed: int, registry: int, bound: int) -> None:
    with pytest.raises(ValueError, match="must have"):
        key_derivation.data_key(bytes(seed), 1, bytes(registry), bytes(bound))


@pytest.mark.parametrize("chain_id", [-1, 2**256])
def test_a_chain_id_that_is_no_uint256_has_no_key(chain_id: int) -> None:
    with pytest.raises(OverflowError):
        key_derivation.data_key(bytes(32), chain_id, bytes(20), bytes(20))


def test_one_secret_gives_unrelated_keys_for_each_purpose() -> None:
    labels = (
        key_derivation.DATA_KEY_LABEL,
        key_derivation.RESULT_DATA_KEY_LABEL,
        key_derivation.RESULT_KEY_LABEL,
        key_derivation.ESCROW_KEY_LABEL,
    )
    assert len({key_derivation.hkdf_sha256(bytes(32), label) for label in labels}) == len(labels)
