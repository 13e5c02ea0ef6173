"""Handover of escrow keys from one instance to another, in a sealed box.

    message    = content ‖ signature (65)
    content    = 0x01 ‖ release (2) ‖ count (2) ‖ count × generation (40)
    generation = X25519 secret (32) ‖ announced_from (8, Unix milliseconds)

A sealed box says nothing about who sealed it. The holder therefore signs the content as `HandoverKeys`, with the
channel and the time of the request. A party in between can insert neither keys of its own nor an earlier answer.
All secrets here are bytearrays, so that their user can wipe them.
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
MOST_KEYS: Final = 2**16 - 1
LONGEST: Final = _HEAD.size + MOST_KEYS * _GENERATION_BYTES + SIGNATURE_LENGTH


@attrs.frozen(slots=True)
class HandedKey:
    """An escrow's secret and the time from which it is announced."""

    secret: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    announced_from: int


def content(release: int, keys: Sequence[HandedKey]) -> bytearray:
    """What the holder signs; followed by the signature it is the message."""
    if not 0 < len(keys) <= MOST_KEYS:
        raise ValueError(f"a handover has 1 to {MOST_KEYS} keys")
    # Of its full size from the start: growing would leave copies of secrets behind.
    written = bytearray(_HEAD.size + len(keys) * _GENERATION_BYTES)
    _HEAD.pack_into(written, 0, _VERSION, release, len(keys))
    for start, key in zip(range(_HEAD.size, len(written), _GENERATION_BYTES), keys, strict=True):
        written[start : start + KEY_BYTES] = key.secret
        _TIME.pack_into(written, start + KEY_BYTES, key.announced_from)
    return written


@attrs.frozen(slots=True)
class Handover:
    """A message as it was read; `content` is what `signature` must be of."""

    release: int
    keys: tuple[HandedKey, ...]
    content: bytearray = attrs.field(repr=lambda _: "<SECRET>")
    signature: bytes

    @classmethod
    def parse(cls, message: bytearray) -> Self:
        """Refuses with `bad_handover`. The keys are copies: `message` is for its owner to wipe."""
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
