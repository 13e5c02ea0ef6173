"""Handover of escrow keys from one instance to another, in a sealed box.

    message    = content ‖ signature (65)
    content    = 0x01 ‖ release (2) ‖ count (2) ‖ count × generation (40)
    generation = X25519 secret (32) ‖ announced_from (8, Unix milliseconds)

A sealed box does not identify its sender. The holder therefore signs the content as `HandoverKeys`, with the channel
and the time of the request. An attacker on the network can insert neither other keys nor an earlier answer.
All secrets in this module are bytearrays, which the caller can wipe.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, Self

import attrs

from common.box import KEY_BYTES
from common.refusal import Refused
from common.secp256k1 import SIGNATURE_LENGTH

_VERSION: Final = 1
_HEAD: Final = Struct(">BHH")
_TIME: Final = Struct(">Q")
_GENERATION_BYTES: Final = KEY_BYTES + _TIME.size
MAX_KEYS: Final = 2**16 - 1
MAX_BYTES: Final = _HEAD.size + MAX_KEYS * _GENERATION_BYTES + SIGNATURE_LENGTH


@attrs.frozen(slots=True)
class HandedKey:
    """Secret key of an escrow, and the time from which the key is announced."""

    secret: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    announced_from: int


def content(release: int, keys: Sequence[HandedKey]) -> bytearray:
    """Return the content that the holder signs. The message is this content followed by the signature."""
    if not 0 < len(keys) <= MAX_KEYS:
        raise ValueError(f"a handover has 1 to {MAX_KEYS} keys")
    # Allocate the full size at once: growing a bytearray leaves copies of secrets in memory.
    written = bytearray(_HEAD.size + len(keys) * _GENERATION_BYTES)
    _HEAD.pack_into(written, 0, _VERSION, release, len(keys))
    for start, key in zip(range(_HEAD.size, len(written), _GENERATION_BYTES), keys, strict=True):
        written[start : start + KEY_BYTES] = key.secret
        _TIME.pack_into(written, start + KEY_BYTES, key.announced_from)
    return written


@attrs.frozen(slots=True)
class Handover:
    """Handover message. The holder's `signature` must be over `content`."""

    release: int
    keys: tuple[HandedKey, ...]
    content: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    signature: bytes

    @classmethod
    def parse(cls, message: bytearray) -> Self:
        """Read a message. Refuses with `bad_handover`. The keys are copies, so the caller must wipe `message`."""
        end = len(message) - SIGNATURE_LENGTH
        if end < _HEAD.size:
            raise _bad("it is too short")
        version, release, count = _HEAD.unpack_from(message)
        if version != _VERSION:
            raise _bad(f"version {version} is not supported")
        if count == 0 or end != _HEAD.size + count * _GENERATION_BYTES:
            raise _bad(f"{len(message)} bytes do not hold {count} keys")
        keys = tuple(
            HandedKey(message[start : start + KEY_BYTES], _TIME.unpack_from(message, start + KEY_BYTES)[0])
            for start in range(_HEAD.size, end, _GENERATION_BYTES)
        )
        return cls(release, keys, message[:end], bytes(message[end:]))


def _bad(why: str) -> Refused:
    return Refused(f"the handover is malformed: {why}", code="bad_handover")
