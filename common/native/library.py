"""Binding to `signatures.c`, where it could be compiled when the package was built."""

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

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
_STRUCT_CURVE: Final = Struct("@6PI")  # as signatures.c declares it: the context, its functions, a number
# Types that coincurve's binding reads by itself: a declaration of our own would take cffi's parser of C, which is
# slower to import than all of this program's cryptography.
_SIGNERS: Final = "void (*)(void *, size_t, char *, unsigned char *)"
_SIGN_TRANSACTION: Final = "size_t (*)(void *, char *, char *, size_t, unsigned char *)"


class _Kept(threading.local):
    """Of one thread: room for short answers, because to allocate it anew costs a microsecond."""

    def __init__(self) -> None:
        room = ffi.new("unsigned char[]", _SHORT)
        self.room = room, ffi.buffer(room)


class Library:
    """Raises OSError where the file at `path` is no library for this machine."""

    def __init__(self, path: Path) -> None:
        self._loaded = ctypes.CDLL(str(path))
        functions = [_address(ffi.addressof(lib, name)) for name in _CURVE]
        packed = _STRUCT_CURVE.pack(_address(GLOBAL_CONTEXT.ctx), *functions, lib.SECP256K1_EC_UNCOMPRESSED)
        self._curve = ffi.new("unsigned char[]", packed)
        self._signers = self._function("signers", _SIGNERS)
        self._sign_transaction = self._function("sign_transaction", _SIGN_TRANSACTION)
        self._kept = _Kept()

    def _function(self, name: str, kind: str) -> Any:
        """By cffi's call and not by ctypes', which takes several times as long."""
        return ffi.cast(kind, ctypes.cast(getattr(self._loaded, name), ctypes.c_void_p).value)

    def _room(self, length: int) -> tuple[Any, Any]:
        """Memory to be written to, and how to read it."""
        if length <= _SHORT:
            return self._kept.room
        room = ffi.new("unsigned char[]", length)
        return room, ffi.buffer(room)

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


def _address(of: Any) -> int:
    return int(ffi.cast("uintptr_t", of))


def load(path: Path = PATH) -> Library | None:
    """None where it was not built, or was built for another machine."""
    try:
        return Library(path)
    except OSError:
        return None


LIBRARY: Final = load()
