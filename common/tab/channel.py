"""Encrypted channel between the owner and the provider of a tab: Noise_KK_25519_ChaChaPoly_SHA256, in frames.

    static keys   owner: the channel key in the sealed payload; provider: the published box key
    prologue      "svc-tab-1" ‖ chain id (32) ‖ job registry (20) ‖ job id (32) ‖ channel id (8)

    frame         kind (1) ‖ channel id (8) ‖ body
      1 hello     owner → provider    first Noise message, with an empty payload
      2 welcome   provider → owner    second Noise message; its payload is the provider's `Welcome`
      3 data      both                transport message: 1 (more parts follow) or 0 (last part) ‖ part of a message
      4 lost      provider → owner    the provider has no channel of this id; the body is empty

The owner picks a random channel id for each handshake. Both sides ignore frames with another id. The session keys
are only in memory. The owner starts a new handshake after a restart, a change of transport, or a lost, repeated or
changed frame. A frame that does not decrypt ends the channel, so each side receives the other side's messages
completely and in order.
"""

import hashlib
import hmac
import os
from typing import Final, NoReturn, Self

import attrs
from nacl import bindings
from nacl.exceptions import CryptoError

from common.box import PublicKey, SecretKey
from common.refusal import Refused

CHANNEL_ID_BYTES: Final = 8
HEAD_BYTES: Final = 1 + CHANNEL_ID_BYTES
MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_FRAME_BYTES: Final = HEAD_BYTES + 65_535  # Noise's longest message

HELLO: Final = 1
WELCOME: Final = 2
DATA: Final = 3
LOST: Final = 4

_NOISE_PROTOCOL: Final = b"Noise_KK_25519_ChaChaPoly_SHA256"
_PROLOGUE_LABEL: Final = b"svc-tab-1"
_TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_PART_BYTES: Final = 65_535 - _TAG_BYTES - 1
_MORE_PARTS: Final = 1
_LAST_PART: Final = 0


@attrs.frozen(slots=True)
class ChannelBinding:
    """Deployment and job of a tab. The handshake's prologue binds the channel to these values."""

    chain_id: int
    job_registry: bytes
    job_id: bytes

    def prologue(self, channel_id: bytes) -> bytes:
        return _PROLOGUE_LABEL + self.chain_id.to_bytes(32, "big") + self.job_registry + self.job_id + channel_id


@attrs.frozen(slots=True)
class Frame:
    """Frame of a channel. `kind` is HELLO, WELCOME, DATA or LOST."""

    kind: int
    channel_id: bytes
    body: bytes = attrs.field(repr=False)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        if not HEAD_BYTES <= len(raw) <= MAX_FRAME_BYTES or raw[0] not in (HELLO, WELCOME, DATA, LOST):
            raise Refused("this is not a frame of a tab", code="bad_frame")
        return cls(raw[0], raw[1:HEAD_BYTES], raw[HEAD_BYTES:])

    def encode(self) -> bytes:
        return bytes((self.kind,)) + self.channel_id + self.body


class _Cipher:
    """Noise's CipherState: a key and a counter of messages."""

    __slots__ = ("_key", "_number")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def encrypt(self, plaintext: bytes, associated_data: bytes = b"") -> bytes:
        return bindings.crypto_aead_chacha20poly1305_ietf_encrypt(
            plaintext, associated_data, self._next_nonce(), self._key
        )

    def decrypt(self, ciphertext: bytes, associated_data: bytes = b"") -> bytes:
        try:
            return bindings.crypto_aead_chacha20poly1305_ietf_decrypt(
                ciphertext, associated_data, self._next_nonce(), self._key
            )
        except (CryptoError, ValueError):
            raise_bad_frame()

    def _next_nonce(self) -> bytes:
        number, self._number = self._number, self._number + 1
        return bytes(4) + number.to_bytes(8, "little")


class _Handshake:
    """Noise's SymmetricState for the pattern KK, whose static keys are known to both sides."""

    __slots__ = ("_chaining_key", "_cipher", "_hash")

    def __init__(self, prologue: bytes, owner: PublicKey, provider: PublicKey) -> None:
        self._hash = self._chaining_key = (
            _NOISE_PROTOCOL  # not hashed, because Noise hashes only protocol names above 32 bytes
        )
        self._cipher: _Cipher | None = None
        for known in (prologue, owner.raw, provider.raw):
            self.mix_hash(known)

    def mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def mix_key(self, mine: SecretKey, theirs: PublicKey) -> None:
        shared = bindings.crypto_scalarmult(mine.raw, theirs.raw)
        self._chaining_key, key = _hkdf(self._chaining_key, shared)
        self._cipher = _Cipher(key)

    def encrypt(self, plaintext: bytes) -> bytes:
        ciphertext = self._current_cipher().encrypt(plaintext, self._hash)
        self.mix_hash(ciphertext)
        return ciphertext

    def decrypt(self, ciphertext: bytes) -> bytes:
        plaintext = self._current_cipher().decrypt(ciphertext, self._hash)
        self.mix_hash(ciphertext)
        return plaintext

    def split(self) -> tuple[_Cipher, _Cipher]:
        """Return the ciphers of the owner's and of the provider's messages."""
        owners, providers = _hkdf(self._chaining_key, b"")
        return _Cipher(owners), _Cipher(providers)

    def _current_cipher(self) -> _Cipher:
        if self._cipher is None:
            raise AssertionError("mix_key must be called before encrypting or decrypting")
        return self._cipher


class Channel:
    """One side of an open channel. Call `seal` in the order of sending, and `open` in the order of receiving."""

    __slots__ = ("_incoming", "_outgoing", "_received", "id")

    def __init__(self, channel_id: bytes, outgoing: _Cipher, incoming: _Cipher) -> None:
        self.id = channel_id
        self._outgoing = outgoing
        self._incoming = incoming
        self._received = bytearray()  # parts of an incomplete message, joined so that empty parts use no memory

    def seal(self, message: bytes) -> list[bytes]:
        """Encrypt a message into frames, which must be sent in this order."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise Refused(f"a message of a tab must have at most {MAX_MESSAGE_BYTES} bytes", code="message_too_large")
        frames = []
        for start in range(0, max(1, len(message)), _PART_BYTES):
            part = message[start : start + _PART_BYTES]
            marker = _MORE_PARTS if start + _PART_BYTES < len(message) else _LAST_PART
            frames.append(Frame(DATA, self.id, self._outgoing.encrypt(bytes((marker,)) + part)).encode())
        return frames

    def open(self, frame: Frame) -> bytes | None:
        """Return the message that this frame completes, or None. A refused frame (`bad_frame`) ends the channel."""
        if frame.kind != DATA or frame.channel_id != self.id:
            raise_bad_frame()
        part = self._incoming.decrypt(frame.body)
        if not part or part[0] not in (_MORE_PARTS, _LAST_PART):
            raise_bad_frame()
        self._received += part[1:]
        if len(self._received) > MAX_MESSAGE_BYTES:
            raise_bad_frame()
        if part[0] == _MORE_PARTS:
            return None
        message = bytes(self._received)
        self._received.clear()
        return message


class OwnerHandshake:
    """Handshake of the owner: send `hello`, then pass the answer to `finish`."""

    def __init__(self, binding: ChannelBinding, channel_key: SecretKey, provider: PublicKey) -> None:
        self.channel_id = os.urandom(CHANNEL_ID_BYTES)
        self._static = channel_key
        self._ephemeral = SecretKey.generate()
        self._state = _Handshake(binding.prologue(self.channel_id), channel_key.public, provider)
        self._state.mix_hash(self._ephemeral.public.raw)
        self._state.mix_key(self._ephemeral, provider)
        self._state.mix_key(channel_key, provider)
        body = self._ephemeral.public.raw + self._state.encrypt(b"")
        self.hello: bytes = Frame(HELLO, self.channel_id, body).encode()

    def finish(self, welcome: Frame) -> tuple[Channel, bytes]:
        """Return the channel and the provider's payload. Refuse a forged welcome as `bad_frame`.

        After a refusal, this handshake cannot continue. Start a new `OwnerHandshake`.
        """
        if welcome.kind != WELCOME or welcome.channel_id != self.channel_id:
            raise_bad_frame()
        theirs = _ephemeral_key(welcome.body)
        self._state.mix_hash(theirs.raw)
        self._state.mix_key(self._ephemeral, theirs)
        self._state.mix_key(self._static, theirs)
        payload = self._state.decrypt(welcome.body[_KEY_BYTES:])
        owners, providers = self._state.split()
        return Channel(self.channel_id, owners, providers), payload


def accept_hello(
    binding: ChannelBinding, box_key: SecretKey, channel_key: PublicKey, hello: Frame, payload: bytes
) -> tuple[Channel, bytes]:
    """Return the provider's channel and the welcome frame. Refuse a forged hello as `bad_frame`."""
    if hello.kind != HELLO:
        raise_bad_frame()
    theirs = _ephemeral_key(hello.body)
    state = _Handshake(binding.prologue(hello.channel_id), channel_key, box_key.public)
    state.mix_hash(theirs.raw)
    state.mix_key(box_key, theirs)
    state.mix_key(box_key, channel_key)
    if state.decrypt(hello.body[_KEY_BYTES:]):
        raise_bad_frame()
    ephemeral = SecretKey.generate()
    state.mix_hash(ephemeral.public.raw)
    state.mix_key(ephemeral, theirs)
    state.mix_key(ephemeral, channel_key)
    body = ephemeral.public.raw + state.encrypt(payload)
    owners, providers = state.split()
    return Channel(hello.channel_id, providers, owners), Frame(WELCOME, hello.channel_id, body).encode()


def lost_frame(channel_id: bytes) -> bytes:
    """Return the provider's frame for an unknown channel id."""
    return Frame(LOST, channel_id, b"").encode()


def _ephemeral_key(body: bytes) -> PublicKey:
    if len(body) < _KEY_BYTES + _TAG_BYTES:
        raise_bad_frame()
    try:
        return PublicKey(body[:_KEY_BYTES])
    except Refused:
        raise_bad_frame()


def _hkdf(chaining_key: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Return the two outputs of Noise's HKDF."""
    extracted = hmac.digest(chaining_key, secret, "sha256")
    first = hmac.digest(extracted, b"\x01", "sha256")
    return first, hmac.digest(extracted, first + b"\x02", "sha256")


def raise_bad_frame() -> NoReturn:
    raise Refused("the frame does not belong to this channel", code="bad_frame")
