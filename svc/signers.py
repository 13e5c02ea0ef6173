"""Signers: a private key in this process, or any wallet that can be asked.

A signer has an address and signs what it is asked to. What a remote or hardware wallet returns is checked before it is
used: it must be a signature by that address over exactly what was asked.
"""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
from anyio import to_thread

from common.scalars import read_hex
from common.secp256k1 import SIGNATURE_LENGTH, Wallet, recover
from svc.errors import SigningFailed

if TYPE_CHECKING:
    from svc.core.typed_data import SigningRequest

_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

Signed = bytes | str
DigestSigning = Callable[[bytes], Signed | Awaitable[Signed]]
TypedDataSigning = Callable[[dict[str, Any]], Signed | Awaitable[Signed]]


class Signer(Protocol):
    """`deterministic`: the same request always gives the same signature (RFC 6979), so keys may be derived from one."""

    @property
    def address(self) -> bytes: ...

    @property
    def deterministic(self) -> bool: ...

    async def sign(self, request: "SigningRequest") -> bytes:
        """65 bytes: r ‖ s ‖ v, s in the lower half, v 27 or 28. Raises SigningFailed."""
        ...


@attrs.frozen(slots=True)
class LocalSigner:
    """A private key in this process.

    >>> LocalSigner(Wallet(bytes(31) + b"\\x01")).address.hex()
    '7e5f4552091a69125d5dfcb7b8c2659029395bdf'
    """

    wallet: Wallet

    @property
    def address(self) -> bytes:
        return self.wallet.address

    @property
    def deterministic(self) -> bool:
        return True

    async def sign(self, request: "SigningRequest") -> bytes:
        return self.wallet.sign(request.digest)


@attrs.frozen(slots=True)
class RemoteSigner:
    """A wallet that is asked through a callable, by digest or by EIP-712 JSON; give one of the two.

    The callable returns 65 bytes or their 0x-hex, at once or to be awaited. It is called in a thread, since devices
    take their time. `deterministic=True` says that the wallet follows RFC 6979; without it the client derives no
    result key from it and wants a `cipher_key`.

    >>> from common.secp256k1 import Wallet
    >>> device = Wallet(bytes(31) + b"\\x01")
    >>> signer = RemoteSigner(device.address, by_digest=device.sign, deterministic=True)
    """

    address: bytes
    by_digest: DigestSigning | None = None
    by_typed_data: TypedDataSigning | None = None
    deterministic: bool = False

    def __attrs_post_init__(self) -> None:
        if (self.by_digest is None) == (self.by_typed_data is None):
            raise TypeError("a remote signer takes either by_digest or by_typed_data")

    async def sign(self, request: "SigningRequest") -> bytes:
        try:
            signature = _usual_form(await self._ask(request))
        except SigningFailed:
            raise
        except Exception as refused:  # whatever a wallet's library raises, it means that there is no signature
            raise SigningFailed(f"the wallet did not sign the {request.purpose}: {refused}") from refused
        if recover(request.digest, signature) != self.address:
            raise SigningFailed(f"what the wallet returned does not sign the {request.purpose} for its address")
        return signature

    async def _ask(self, request: "SigningRequest") -> Signed:
        def ask() -> tuple[Signed | Awaitable[Signed]]:  # in a tuple: threads hand no coroutine over as such
            if self.by_digest is not None:
                return (self.by_digest(request.digest),)
            if self.by_typed_data is not None:
                return (self.by_typed_data(request.typed_data()),)
            raise AssertionError("checked when it was made")

        (answer,) = await to_thread.run_sync(ask)
        return await answer if isawaitable(answer) else answer


def _usual_form(signed: Signed) -> bytes:
    """Devices write v as 0 or 1, and some an s in the upper half: the same signature, not in the accepted form."""
    raw = read_hex(signed, SIGNATURE_LENGTH, "signature") if isinstance(signed, str) else bytes(signed)
    if len(raw) != SIGNATURE_LENGTH:
        raise SigningFailed(f"a signature has {SIGNATURE_LENGTH} bytes, not {len(raw)}")
    parity = raw[64] - 27 if raw[64] >= 27 else raw[64]
    s = int.from_bytes(raw[32:64], "big")
    if s > _ORDER // 2:
        s, parity = _ORDER - s, 1 - parity
    return raw[:32] + s.to_bytes(32, "big") + bytes((27 + parity,)) if parity in {0, 1} and s > 0 else raw
