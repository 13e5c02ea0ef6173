"""Who signed these structs? Many signatures over typed data, answered in one call.

The work is done by `native/signatures.c` where it could be compiled when the package was built, and else by the loop
below, which answers the same at a little more cost. What the compiled one adds is that it holds the interpreter's
lock for none of it, so that threads which check signatures leave each other and the event loop alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, TypeAlias

import cffi
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

from common.keccak import keccak256
from common.secp256k1 import SIGNATURE_LENGTH, recover

LIBRARY: Final = Path(__file__).with_name("native") / "signatures.so"

# prefix (34) ‖ signature (65) ‖ length of the struct (4), in front of the struct
_HEAD: Final = Struct(f"<34s{SIGNATURE_LENGTH}sI")
_ANSWER: Final = 21
_NO_SIGNATURE: Final = bytes(SIGNATURE_LENGTH)  # recovers to nobody

Signers: TypeAlias = Callable[[Sequence[bytes]], list[bytes | None]]


def signed(prefix: bytes, struct: bytes, signature: bytes) -> bytes:
    """One question: `struct` is packed, `prefix` is 0x19 ‖ 0x01 ‖ the domain's separator."""
    return _HEAD.pack(prefix, signature if len(signature) == SIGNATURE_LENGTH else _NO_SIGNATURE, len(struct)) + struct


def signers_by_loop(questions: Sequence[bytes]) -> list[bytes | None]:
    answers = []
    for question in questions:
        prefix, signature, _ = _HEAD.unpack_from(question)
        answers.append(recover(keccak256(prefix + keccak256(question[_HEAD.size :])), signature))
    return answers


def compiled(library: Path = LIBRARY) -> Signers | None:
    """The same from `library`, or None where it was not built, or was built for another machine."""
    native = cffi.FFI()
    native.cdef(
        """
        struct curve { void *context, *parse, *recover, *serialize; unsigned uncompressed; };
        void signers(const struct curve *, size_t, const unsigned char *, unsigned char *);
        """
    )
    try:
        call = native.dlopen(str(library)).signers
    except OSError:
        return None

    def pointer(of: Any) -> Any:
        return native.cast("void *", int(ffi.cast("uintptr_t", of)))

    curve = native.new(
        "struct curve *",
        (
            pointer(GLOBAL_CONTEXT.ctx),
            pointer(ffi.addressof(lib, "secp256k1_ecdsa_recoverable_signature_parse_compact")),
            pointer(ffi.addressof(lib, "secp256k1_ecdsa_recover")),
            pointer(ffi.addressof(lib, "secp256k1_ec_pubkey_serialize")),
            lib.SECP256K1_EC_UNCOMPRESSED,
        ),
    )

    def signers(questions: Sequence[bytes]) -> list[bytes | None]:
        written = bytearray(_ANSWER * len(questions))
        call(curve, len(questions), b"".join(questions), native.from_buffer(written))
        answers = bytes(written)
        return [answers[at + 1 : at + _ANSWER] if answers[at] else None for at in range(0, len(answers), _ANSWER)]

    return signers


_COMPILED: Final = compiled()
COMPILED: Final = _COMPILED is not None

signers: Final[Signers] = _COMPILED or signers_by_loop
"""The addresses that signed, in order; None for a signature in no accepted form (see `secp256k1.recover`)."""
