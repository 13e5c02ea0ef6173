"""Containers and sealed results, byte by byte, with libsodium's bindings.

0x01 ‖ seed_wrap (80) ‖ header (24) ‖ frames of 64 KiB, the last one tagged FINAL
"""

import hashlib
import hmac
import json
from typing import Any, Final

from eth_utils import keccak
from nacl import bindings
from nacl.public import PrivateKey, PublicKey, SealedBox
from nacl.utils import random

_VERSION: Final = b"\x01"
_WRAP: Final = 80
_HEADER: Final = bindings.crypto_secretstream_xchacha20poly1305_HEADERBYTES
_FRAME: Final = 65_536
_SEALED_FRAME: Final = _FRAME + bindings.crypto_secretstream_xchacha20poly1305_ABYTES
_INNER: Final = bindings.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
_FINAL: Final = bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256 and no salt. One block is enough."""
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def container_label(chain_id: int, registry: bytes, owner: bytes) -> bytes:
    return b"svc-dek-v1" + chain_id.to_bytes(32, "big") + registry + owner


def result_label(chain_id: int, registry: bytes, job_id: bytes) -> bytes:
    return b"svc-result-v1" + chain_id.to_bytes(32, "big") + registry + job_id


def seal(recipient: bytes, label: bytes, plaintext: bytes) -> bytes:
    seed = random(32)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    stream = [bindings.crypto_secretstream_xchacha20poly1305_init_push(state, hkdf(seed, label))]
    last = max(0, (len(plaintext) - 1) // _FRAME) * _FRAME
    for start in range(0, last + 1, _FRAME):
        piece = plaintext[start : start + _FRAME]
        tag = _FINAL if start == last else _INNER
        stream.append(bindings.crypto_secretstream_xchacha20poly1305_push(state, piece, None, tag))
    return _VERSION + SealedBox(PublicKey(recipient)).encrypt(seed) + b"".join(stream)


def unseal(secret: PrivateKey, label: bytes, sealed: bytes) -> bytes:
    assert sealed[:1] == _VERSION, "another version"
    seed = SealedBox(secret).decrypt(sealed[1 : 1 + _WRAP])
    stream = sealed[1 + _WRAP :]
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, stream[:_HEADER], hkdf(seed, label))
    plaintext, tag = b"", _INNER
    for start in range(_HEADER, len(stream), _SEALED_FRAME):
        assert tag == _INNER, "bytes after the last frame"
        frame = stream[start : start + _SEALED_FRAME]
        piece, tag = bindings.crypto_secretstream_xchacha20poly1305_pull(state, frame)
        plaintext += piece
    assert tag == _FINAL, "it ends early"
    return plaintext


def commitment(container: bytes) -> bytes:
    return keccak(_VERSION + container[1 : 1 + _WRAP] + keccak(container[1 + _WRAP :]))


def canonical(value: dict[str, Any]) -> bytes:
    """RFC 8785 for the values used here: ASCII keys and integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
