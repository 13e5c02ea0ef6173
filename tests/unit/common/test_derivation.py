"""HKDF and the keys derived with it."""

import pytest

from common import key_derivation
from tests.vectors.vector_file import Case, cases

WHY = {"length": "must have 65 bytes", "signature_v": "v must be 27 or 28"}


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
        with pytest.raises(ValueError, match=WHY[case["refused"]]):
            derived(case)
    else:
        assert derived(case) == (case["key"], case.get("public"))


def test_hkdf_gives_the_published_output() -> None:
    # RFC 5869, test case 3 (no salt, no info)
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert key_derivation.hkdf_sha256(b"\x0b" * 22, b"").hex() == expected


@pytest.mark.parametrize(
    ("seed", "registry", "bound"),
    [(31, 20, 20), (33, 20, 20), (32, 19, 20), (32, 21, 20), (32, 20, 21), (32, 20, 0)],
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
