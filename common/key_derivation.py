"""Derive keys from secrets by HKDF-SHA256 without salt, with one label per purpose.

HKDF's `info` input starts with the label, so a key for one purpose never equals a key for another. The fields after the
label bind the key to a deployment and to an owner or a job. They have fixed lengths, so the encoding is unambiguous.
"""

import hashlib
import hmac
from typing import Final, TypeVar

from common.box import SecretKey

B = TypeVar("B", bound=bytes | bytearray)

DATA_KEY_LABEL: Final = b"svc-dek-v1"
RESULT_DATA_KEY_LABEL: Final = b"svc-result-v1"
RESULT_KEY_LABEL: Final = b"svc-result-key-v1"
ESCROW_KEY_LABEL: Final = b"svc-escrow-v1"

SEED_BYTES: Final = 32


def hkdf_sha256(secret: bytes | bytearray, info: bytes) -> bytes:
    """Return the first 32 bytes of HKDF-SHA256 with an empty salt (RFC 5869: one block of the expansion)."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def data_key(seed: bytes | bytearray, chain_id: int, job_registry: bytes, owner: bytes) -> bytes:
    """Return the key of a container's ciphertext.

    The key is bound to the owner because containers are public. If a stranger posts someone else's container, the
    escrow derives a key for the stranger as owner, and this key does not open the container.
    """
    deployment = _deployment_bytes(chain_id, job_registry)
    return hkdf_sha256(_require_length(seed, SEED_BYTES), DATA_KEY_LABEL + deployment + _require_length(owner, 20))


def result_data_key(seed: bytes, chain_id: int, job_registry: bytes, job_id: bytes) -> bytes:
    """Return the key of a sealed result's ciphertext. The key is bound to the job, so results cannot be swapped."""
    deployment = _deployment_bytes(chain_id, job_registry)
    return hkdf_sha256(
        _require_length(seed, SEED_BYTES), RESULT_DATA_KEY_LABEL + deployment + _require_length(job_id, 32)
    )


def result_key_from_signature(signature: bytes) -> SecretKey:
    """Derive a wallet's result key from the wallet's deterministic signature of `ResultKey`.

    Results are sealed to this key. Raise ValueError unless the signature's v is 27 or 28, because another encoding of v
    would silently give another key.
    """
    if _require_length(signature, 65)[64] not in (27, 28):
        raise ValueError("the signature's v must be 27 or 28")
    return SecretKey(hkdf_sha256(signature, RESULT_KEY_LABEL))


def escrow_key(operator_key: bytes) -> SecretKey:
    """Derive the escrow's key, to which open orders are sealed, from the operator's 32-byte private key."""
    return SecretKey(hkdf_sha256(_require_length(operator_key, 32), ESCROW_KEY_LABEL))


def _deployment_bytes(chain_id: int, job_registry: bytes) -> bytes:
    return chain_id.to_bytes(32, "big") + _require_length(job_registry, 20)


def _require_length(raw: B, length: int) -> B:
    if len(raw) != length:
        raise ValueError(f"this input of the key derivation must have {length} bytes, not {len(raw)}")
    return raw
