"""Who signed these structs? Many signatures over typed data, answered in one call.

The work is done by `native/signatures.c` where it could be compiled when the package was built, and else by the loop
below, which answers the same at a little more cost. What the compiled one adds is that it holds the interpreter's
lock for none of it, so that threads which check signatures leave each other and the event loop alone.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from common.keccak import keccak256
from common.native.library import LIBRARY
from common.secp256k1 import SIGNATURE_LENGTH, recover

# prefix (34) ‖ signature (65) ‖ length of the struct (4), in front of the struct
_HEAD: Final = Struct(f"<34s{SIGNATURE_LENGTH}sI")
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


signers: Final[Signers] = LIBRARY.signers if LIBRARY is not None else signers_by_loop
"""The addresses that signed, in order; None for a signature in no accepted form (see `secp256k1.recover`)."""
