"""Signers: a private key in this process, or a remote or hardware wallet.

Each signature of a remote wallet is checked against the wallet's address and the requested message.
"""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
from anyio import to_thread

from common.scalars import read_hex
from common.secp256k1 import SIGNATURE_LENGTH, Wallet, recover_address
from svc.errors import SigningFailed

if TYPE_CHECKING:
    from svc.core.typed_data import SigningRequest

_CURVE_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

RawSignature = bytes | str
SignDigest = Callable[[bytes], RawSignature | Awaitable[RawSignature]]
SignTypedData = Callable[[dict[str, Any]], RawSignature | Awaitable[RawSignature]]


class Signer(Protocol):
    """Wallet that signs.

    `deterministic` is True if equal requests give equal signatures (RFC 6979). Only then can the client derive a result
    key from a signature.
    """

    @property
    def address(self) -> bytes: ...

    @property
    def deterministic(self) -> bool: ...

    async def sign(self, request: "SigningRequest") -> bytes:
        """Return 65 bytes: r ‖ s ‖ v, with s in the lower half and v 27 or 28. Raises SigningFailed."""
        ...


@attrs.frozen(slots=True)
class LocalSigner:
    """Signer with a private key in this process.

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
    """Wallet that signs through a callable. `by_digest` is called with a digest, `by_typed_data` with EIP-712 JSON.

    The callable returns a signature (65 bytes, or 0x-hex), or an awaitable of a signature. The callable runs in a
    thread, because devices are slow.

    `deterministic=True` declares that the wallet follows RFC 6979. Otherwise the client derives no result key from
    signatures, and needs a `cipher_key`.

    >>> from common.secp256k1 import Wallet
    >>> device = Wallet(bytes(31) + b"\\x01")
    >>> signer = RemoteSigner(device.address, by_digest=device.sign, deterministic=True)
    """

    address: bytes
    by_digest: SignDigest | None = None
    by_typed_data: SignTypedData | None = None
    deterministic: bool = False

    def __attrs_post_init__(self) -> None:
        if (self.by_digest is None) == (self.by_typed_data is None):
            raise TypeError("set either by_digest or by_typed_data, not both")

    async def sign(self, request: "SigningRequest") -> bytes:
        try:
            signature = _normalize_signature(await self._request_signature(request))
        except SigningFailed:
            raise
        except Exception as error:  # a wallet's library may raise any error
            raise SigningFailed(f"the wallet did not sign the {request.purpose}: {error}") from error
        if recover_address(request.digest, signature) != self.address:
            raise SigningFailed(f"the wallet's signature of the {request.purpose} does not match the wallet's address")
        return signature

    async def _request_signature(self, request: "SigningRequest") -> RawSignature:
        # Return the answer in a tuple, because to_thread.run_sync cannot return an awaitable.
        def call_wallet() -> tuple[RawSignature | Awaitable[RawSignature]]:
            if self.by_digest is not None:
                return (self.by_digest(request.digest),)
            if self.by_typed_data is not None:
                return (self.by_typed_data(request.typed_data()),)
            raise AssertionError("neither by_digest nor by_typed_data is set")

        (answer,) = await to_thread.run_sync(call_wallet)
        return await answer if isawaitable(answer) else answer


def _normalize_signature(signature: RawSignature) -> bytes:
    """Return the signature with s in the lower half and v 27 or 28. Devices may use v 0 or 1, or a high s."""
    raw = read_hex(signature, SIGNATURE_LENGTH, "signature") if isinstance(signature, str) else bytes(signature)
    if len(raw) != SIGNATURE_LENGTH:
        raise SigningFailed(f"a signature must have {SIGNATURE_LENGTH} bytes, but the wallet returned {len(raw)}")
    parity = raw[64] - 27 if raw[64] >= 27 else raw[64]
    s = int.from_bytes(raw[32:64], "big")
    if s > _CURVE_ORDER // 2:
        s, parity = _CURVE_ORDER - s, 1 - parity
    return raw[:32] + s.to_bytes(32, "big") + bytes((27 + parity,)) if parity in {0, 1} and s > 0 else raw
