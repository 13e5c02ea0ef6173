"""Settings, transport, wallet, session and cached market data that all parts of a client share."""

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
from svc.core.market import VerifiedMarket
from svc.core.money import Ceiling, batch_ceiling, line_ceiling, order_ceiling
from svc.core.typed_data import build_signing_request
from svc.errors import NO_WALLET, OrderRefused
from svc.market_verifier import MarketVerifier
from svc.records import Deployment, EscrowKey, Model
from svc.settings import Settings
from svc.signers import Signer
from svc.wire.checked_reads import CheckedReader
from svc.wire.sessions import Sessions
from svc.wire.transport import Transport

T = TypeVar("T")

# Lifetime of the cached models and of the escrow's key.
_CACHE_LIFETIME_S: Final = 60.0


@attrs.define(eq=False)
class Account:
    """One wallet at one coordinator."""

    settings: Settings
    transport: Transport
    checked_reader: CheckedReader
    signer: Signer | None
    market_verifier: MarketVerifier
    last_fee_terms: FeeTerms | None = None  # charges in the last signed payment
    supports_progress: bool | None = None  # whether the coordinator reports progress; None: unknown
    _market: VerifiedMarket | None = None
    _reported_windows: tuple[int, ...] | None = None
    _derived_key: SecretKey | None = None
    _sessions: Sessions | None = None
    _cache: dict[str, tuple[float, Any]] = attrs.field(factory=dict)
    _derivation_lock: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def market(self) -> VerifiedMarket:
        """Return the verified market. Only the first call reads the deployment."""
        if self._market is None:
            await self.deployment()
        if self._market is None:
            raise AssertionError("the market is still unknown after the deployment was read")
        return self._market

    async def deployment(self) -> Deployment:
        """Read and verify the deployment. Orders may be signed only after this call."""
        answer = await self.transport.get("/evm/chain", Deployment)
        self._market = await self.market_verifier.verify_deployment(answer)
        self._reported_windows = answer.windows
        return answer

    async def reported_windows(self, window: int) -> tuple[int, ...] | None:
        """Return the allowed windows in seconds, or None if the coordinator does not report them.

        If `window` is not in the cached list, the list is read again.
        """
        await self.market()
        if self._reported_windows is not None and window not in self._reported_windows:
            await self.deployment()
        return self._reported_windows

    async def model(self, name: str) -> Model:
        await self.market()
        path = f"/v1/models/{quote(name)}"
        is_new, answer = await self._read_cached(path, Model)
        if is_new:
            if answer.id != name:
                raise OrderRefused(f"the coordinator returned model {answer.id!r} instead of {name!r}", param="model")
            await self.market_verifier.check_model(answer)
            self._store(path, answer)
        return answer

    async def escrow(self) -> EscrowKey:
        """Return the escrow's key and evidence, after verifying both. Raises EscrowUntrusted."""
        await self.market()
        is_new, answer = await self._read_cached("/key", EscrowKey)
        await self.market_verifier.verify_escrow_key(answer)
        if is_new:
            self._store("/key", answer)
        return answer

    async def escrow_key(self) -> PublicKey:
        """Return the escrow's verified key. Raises EscrowUntrusted."""
        return await self.market_verifier.verify_escrow_key(await self.escrow())

    async def verify_box_key(self, provider: int, reported: str) -> PublicKey:
        """Verify the box key that the coordinator reports for a provider. Raises MarketChanged and ChainContradicts."""
        await self.market()
        return await self.market_verifier.verify_box_key(provider, reported)

    async def order_ceiling(self, max_amount: int | None) -> Ceiling:
        await self.market()
        return order_ceiling(self.market_verifier.token(), max_amount, self.settings.max_amount)

    async def line_ceiling(self, max_amount: int | None) -> Ceiling:
        await self.market()
        return line_ceiling(self.market_verifier.token(), max_amount, self.settings.max_amount)

    async def batch_ceiling(self, max_amount: int | None) -> Ceiling:
        await self.market()
        return batch_ceiling(self.market_verifier.token(), max_amount, self.settings.max_batch_amount)

    def wallet(self) -> Signer:
        """Return the signer. Raises OrderRefused for a client without a wallet."""
        if self.signer is None:
            raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
        return self.signer

    async def result_keys(self) -> tuple[SecretKey, ...]:
        """Return the keys to which results may be sealed. Results of new jobs are sealed to the first key."""
        configured, configured_first = self.settings.cipher_key, self.settings.cipher_key_first
        async with self._derivation_lock:
            if self._derived_key is None and self.signer is not None and self.signer.deterministic:
                signature = await self.signer.sign(sealing.result_key_request((await self.market()).domains))
                self._derived_key = result_key_from_signature(signature)
        keys = sealing.list_result_keys(self._derived_key, configured, configured_first=configured_first)
        if not keys:
            if self.signer is None:
                raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
            message = (
                "no key to seal results to: set SVC_CIPHER_KEY (32 bytes of hex), or pass a signer with"
                " deterministic=True if the wallet's signatures follow RFC 6979"
            )
            raise OrderRefused(message, param="SVC_CIPHER_KEY")
        return keys

    async def authorised(self, send: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """Call `send` with the authorization header of this wallet's session, and return its result."""
        return await self.sessions().authorised(send)

    def sessions(self) -> Sessions:
        if self._sessions is None:
            self._sessions = Sessions(self.transport, self.wallet().address, self._sign_in)
        return self._sessions

    async def _sign_in(self, nonce: str) -> dict[str, str]:
        signer, message = self.wallet(), SvcSession(self.wallet().address, nonce)
        signature = await signer.sign(build_signing_request("session", (await self.market()).domains.session, message))
        return {"address": hex_of(signer.address), "nonce": nonce, "signature": hex_of(signature)}

    async def _read_cached(self, path: str, kind: type[T]) -> tuple[bool, T]:
        """Return (False, cached answer) or (True, new answer). The caller must verify and cache a new answer."""
        read_at, cached = self._cache.get(path, (-_CACHE_LIFETIME_S, None))
        if cached is not None and anyio.current_time() - read_at < _CACHE_LIFETIME_S:
            return False, cached
        return True, await self.transport.get(path, kind)

    def _store(self, path: str, answer: object) -> None:
        self._cache[path] = (anyio.current_time(), answer)
