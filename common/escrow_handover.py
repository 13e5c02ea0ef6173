"""Encode and decode the message, sealed in a box, in which one escrow instance hands its keys to another.

    message    = content ‖ signature (65)
    content    = 0x01 ‖ release (2) ‖ count (2) ‖ count × generation (40)
    generation = X25519 secret (32) ‖ announced_from (8, Unix milliseconds)

A sealed box does not identify its sender. The holder (the instance that hands over its keys) therefore signs the
content as `HandoverKeys`, with the channel key and the time of the request. An attacker on the network can neither
replace the keys nor replay an earlier message. All secrets in this module are bytearrays, which the caller can wipe.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, Self

import attrs

from common.box import KEY_BYTES
from common.refusal import Refused
from common.secp256k1 import SIGNATURE_LENGTH

_VERSION: Final = 1
_HEAD_LAYOUT: Final = Struct(">BHH")
_TIME_LAYOUT: Final = Struct(">Q")
_GENERATION_BYTES: Final = KEY_BYTES + _TIME_LAYOUT.size
MAX_HANDOVER_KEYS: Final = 2**16 - 1


@attrs.frozen(slots=True)
class HandedOverKey:
    """Secret key of an escrow, and the time from which the key is announced."""

    secret: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    announced_from_ms: int


def handover_content(release: int, keys: Sequence[HandedOverKey]) -> bytearray:
    """Return the content that the holder signs. The message is this content followed by the signature."""
    if not 0 < len(keys) <= MAX_HANDOVER_KEYS:
        raise ValueError(f"a handover must have 1 to {MAX_HANDOVER_KEYS} keys, not {len(keys)}")
    # Allocate the full size at once: growing a bytearray leaves copies of secrets in memory.
    written = bytearray(_HEAD_LAYOUT.size + len(keys) * _GENERATION_BYTES)
    _HEAD_LAYOUT.pack_into(written, 0, _VERSION, release, len(keys))
    for start, key in zip(range(_HEAD_LAYOUT.size, len(written), _GENERATION_BYTES), keys, strict=True):
        written[start : start + KEY_BYTES] = key.secret
        _TIME_LAYOUT.pack_into(written, start + KEY_BYTES, key.announced_from_ms)
    return written


@attrs.frozen(slots=True)
class Handover:
    """Handover message. The caller must verify that `signature` is the holder's signature over `content`."""

    release: int
    keys: tuple[HandedOverKey, ...]
    content: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    signature: bytes

    @classmethod
    def parse(cls, message: bytearray) -> Self:
        """Read a message. Refuse a malformed message as `bad_handover`.

        The keys are copies, so the caller must also wipe `message`.
        """
        end = len(message) - SIGNATURE_LENGTH
        if end < _HEAD_LAYOUT.size:
            raise _bad_handover("the message is too short")
        version, release, count = _HEAD_LAYOUT.unpack_from(message)
        if version != _VERSION:
            raise _bad_handover(f"its version must be {_VERSION}, not {version}")
        if count == 0 or end != _HEAD_LAYOUT.size + count * _GENERATION_BYTES:
            raise _bad_handover(f"{len(message)} bytes is the wrong length for {count} keys")
        keys = tuple(
            HandedOverKey(message[start : start + KEY_BYTES], _TIME_LAYOUT.unpack_from(message, start + KEY_BYTES)[0])
            for start in range(_HEAD_LAYOUT.size, end, _GENERATION_BYTES)
        )
        return cls(release, keys, message[:end], bytes(message[end:]))


def _bad_handover(reason: str) -> Refused:
    return Refused(f"the handover is malformed: {reason}", code="bad_handover")
