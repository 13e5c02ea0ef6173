"""State that all parts of a client share: one wallet at one coordinator.

The deployment is read once. Models and the escrow's key are cached.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import anyio
import attrs

from common.box import PublicKey, SecretKey
from common.key_derivation import result_key_from_signature
from common.messages.sessions import SvcSession
from common.quotes import FeeTerms
from common.scalars import hex_of
from svc.core import sealing
from svc.core.market import Market
from svc.core.money import Ceiling, batch_ceiling, line_ceiling, order_ceiling
from svc.core.typed_data import request
from svc.errors import NO_WALLET, OrderRefused
from svc.records import Deployment, EscrowKey, Model
from svc.settings import Settings
from svc.signers import Signer
from svc.vouching import Vouching
from svc.wire.checked_reads import CheckedReads
from svc.wire.sessions import Sessions
from svc.wire.transport import Transport

T = TypeVar("T")

# For models and the escrow's key.
_CACHE_S: Final = 60.0


@attrs.define(eq=False)
class Account:
    """Wallet, transport and caches of a client."""

    settings: Settings
    transport: Transport
    gateways: CheckedReads
    signer: Signer | None
    vouching: Vouching
    charges: FeeTerms | None = None  # charges of the last signed payment
    supports_progress: bool | None = None  # None: not known yet
    _market: Market | None = None
    _windows: tuple[int, ...] | None = None
    _derived: SecretKey | None = None
    _sessions: Sessions | None = None
    _cache: dict[str, tuple[float, Any]] = attrs.field(factory=dict)
    _deriving: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def market(self) -> Market:
        """Return the deployment, read once and verified."""
        if self._market is None:
            await self.deployment()
        if self._market is None:
            raise AssertionError("reading the deployment sets it")
        return self._market

    async def deployment(self) -> Deployment:
        """Read the deployment and verify it. It may then be signed for."""
        answer = await self.transport.get("/evm/chain", Deployment)
        self._market = await self.vouching.market(answer)
        self._windows = answer.windows
        return answer

    async def reported_windows(self, window: int) -> tuple[int, ...] | None:
        """Return the allowed windows in seconds, as the coordinator reports them, or None if it does not.

        The list is read again if `window` is not in it.
        """
        await self.market()
        if self._windows is not None and window not in self._windows:
            await self.deployment()
        return self._windows

    async def model(self, name: str) -> Model:
        await self.market()
        path = f"/v1/models/{quote(name)}"
        is_new, answer = await self._read(path, Model)
        if is_new:
            if answer.id != name:
                raise OrderRefused(f"requested model {name!r}, got {answer.id!r}", param="model")
            await self.vouching.model(answer)
            self._store(path, answer)
        return answer

    async def escrow(self) -> EscrowKey:
        """Return the escrow's answer, verified. Raises EscrowUntrusted."""
        await self.market()
        is_new, answer = await self._read("/key", EscrowKey)
        await self.vouching.escrow_key(answer)
        if is_new:
            self._store("/key", answer)
        return answer

    async def escrow_key(self) -> PublicKey:
        """Return the escrow's key, verified. Raises EscrowUntrusted."""
        return await self.vouching.escrow_key(await self.escrow())

    async def box_key(self, provider: int, reported: str) -> PublicKey:
        """Verify a provider's reported key. Raises MarketChanged and ChainContradicts."""
        await self.market()
        return await self.vouching.box_key(provider, reported)

    async def order_ceiling(self, given: int | None) -> Ceiling:
        await self.market()
        return order_ceiling(self.vouching.token(), given, self.settings.max_amount)

    async def line_ceiling(self, given: int | None) -> Ceiling:
        await self.market()
        return line_ceiling(self.vouching.token(), given, self.settings.max_amount)

    async def batch_ceiling(self, given: int | None) -> Ceiling:
        await self.market()
        return batch_ceiling(self.vouching.token(), given, self.settings.max_batch_amount)

    def wallet(self) -> Signer:
        """Return the signer. Raises OrderRefused for a client without a wallet."""
        if self.signer is None:
            raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
        return self.signer

    async def result_keys(self) -> tuple[SecretKey, ...]:
        """Return every key that a result may be sealed to. New jobs use the first."""
        given, first = self.settings.cipher_key, self.settings.cipher_key_first
        async with self._deriving:
            if self._derived is None and self.signer is not None and self.signer.deterministic:
                signature = await self.signer.sign(sealing.to_sign((await self.market()).domains))
                self._derived = result_key_from_signature(signature)
        keys = sealing.order_keys(self._derived, given, given_first=first)
        if not keys:
            if self.signer is None:
                raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
            message = (
                "no key to seal results to: set SVC_CIPHER_KEY (32 bytes of hex), or pass a signer with"
                " deterministic=True if the wallet always signs the same way"
            )
            raise OrderRefused(message, param="SVC_CIPHER_KEY")
        return keys

    async def authorised(self, send: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """Call `send` with this wallet's session."""
        return await self.sessions().authorised(send)

    def sessions(self) -> Sessions:
        if self._sessions is None:
            self._sessions = Sessions(self.transport, self.wallet().address, self._sign_in)
        return self._sessions

    async def _sign_in(self, nonce: str) -> dict[str, str]:
        signer, message = self.wallet(), SvcSession(self.wallet().address, nonce)
        signature = await signer.sign(request("session", (await self.market()).domains.session, message))
        return {"address": hex_of(signer.address), "nonce": nonce, "signature": hex_of(signature)}

    async def _read(self, path: str, kind: type[T]) -> tuple[bool, T]:
        """Return a cached answer, or a new one and True. The caller stores a new answer after verifying it."""
        read_at, cached = self._cache.get(path, (-_CACHE_S, None))
        if cached is not None and anyio.current_time() - read_at < _CACHE_S:
            return False, cached
        return True, await self.transport.get(path, kind)

    def _store(self, path: str, answer: object) -> None:
        self._cache[path] = (anyio.current_time(), answer)
