"""Binding to `signatures.c`, where it could be compiled when the package was built."""

import threading
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

import cffi
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

PATH: Final = Path(__file__).with_name("signatures.so")

_ANSWER: Final = Struct("?20s")  # found, address
_AROUND: Final = 32 + 10 + 67  # the fields of a transaction: hash, head and signature
_SHORT: Final = 4096
_CURVE: Final = (
    "secp256k1_ecdsa_recoverable_signature_parse_compact",
    "secp256k1_ecdsa_recover",
    "secp256k1_ec_pubkey_serialize",
    "secp256k1_ecdsa_sign_recoverable",
    "secp256k1_ecdsa_recoverable_signature_serialize_compact",
)
_DECLARED: Final = """
    struct curve {
        void *context, *parse, *recover, *serialize, *sign, *serialize_compact;
        unsigned uncompressed;
    };
    void signers(const struct curve *, size_t count, const unsigned char *items, unsigned char *answers);
    size_t sign_transaction(
        const struct curve *, const unsigned char *secret, const unsigned char *fields, size_t, unsigned char *answer
    );
"""


class _Kept(threading.local):
    """Of one thread: room for short answers, because to allocate it anew costs a microsecond."""

    def __init__(self, native: cffi.FFI) -> None:
        room = native.new("unsigned char[]", _SHORT)
        self.room = room, native.buffer(room)


class Library:
    """Raises OSError where the file at `path` is no library for this machine."""

    def __init__(self, path: Path) -> None:
        native = cffi.FFI()
        native.cdef(_DECLARED)
        loaded = native.dlopen(str(path))

        def pointer(of: Any) -> Any:
            return native.cast("void *", int(ffi.cast("uintptr_t", of)))

        functions = [pointer(ffi.addressof(lib, name)) for name in _CURVE]
        self._curve = native.new(
            "struct curve *", [pointer(GLOBAL_CONTEXT.ctx), *functions, lib.SECP256K1_EC_UNCOMPRESSED]
        )
        self._signers, self._sign_transaction = loaded.signers, loaded.sign_transaction
        self._native = native
        self._kept = _Kept(native)

    def _room(self, length: int) -> tuple[Any, Any]:
        """Memory to be written to, and how to read it."""
        if length <= _SHORT:
            return self._kept.room
        room = self._native.new("unsigned char[]", length)
        return room, self._native.buffer(room)

    def signers(self, questions: Sequence[bytes]) -> list[bytes | None]:
        length = _ANSWER.size * len(questions)
        room, written = self._room(length)
        self._signers(self._curve, len(questions), b"".join(questions), room)
        return [address if found else None for found, address in _ANSWER.iter_unpack(written[:length])]

    def sign_transaction(self, secret: bytes, fields: bytes) -> tuple[bytes, bytes]:
        """(the signed transaction, its hash)"""
        room, written = self._room(_AROUND + len(fields))
        length = self._sign_transaction(self._curve, secret, fields, len(fields), room)
        if not length:
            raise ValueError("the secret is no private key")
        return written[32:length], written[:32]


def load(path: Path = PATH) -> Library | None:
    """None where it was not built, or was built for another machine."""
    try:
        return Library(path)
    except OSError:
        return None


LIBRARY: Final = load()
