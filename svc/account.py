"""One wallet at one coordinator: what all parts of a client share.

What is read of the coordinator once (the deployment) or seldom (models, the escrow's key) is kept here.
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

_FRESH_SECONDS: Final = 60.0  # how long a model or the escrow's key is taken as read


@attrs.define(eq=False)
class Account:
    settings: Settings
    transport: Transport
    gateways: CheckedReads
    signer: Signer | None
    vouching: Vouching
    charges: FeeTerms | None = None  # those of the last payment that was signed here
    tells_progress: bool | None = None  # whether the coordinator tells of jobs before their blocks; None: not known
    _market: Market | None = None
    _windows: tuple[int, ...] | None = None
    _derived: SecretKey | None = None
    _sessions: Sessions | None = None
    _kept: dict[str, tuple[float, Any]] = attrs.field(factory=dict)
    _deriving: anyio.Lock = attrs.field(factory=anyio.Lock)

    async def market(self) -> Market:
        """The deployment, read once, and held against what vouches for it."""
        if self._market is None:
            await self.deployment()
        if self._market is None:
            raise AssertionError("reading the deployment sets it")
        return self._market

    async def deployment(self) -> Deployment:
        """The deployment as the coordinator tells it now; one that may be signed for."""
        answer = await self.transport.get("/evm/chain", Deployment)
        self._market = await self.vouching.market(answer)
        self._windows = answer.windows
        return answer

    async def told_windows(self, wanted: int) -> tuple[int, ...] | None:
        """Windows that the coordinator says the network takes, in seconds, asked again for one that is not among them;
        None where it does not say."""
        await self.market()
        if self._windows is not None and wanted not in self._windows:
            await self.deployment()
        return self._windows

    async def model(self, name: str) -> Model:
        await self.market()
        path = f"/v1/models/{quote(name)}"
        read, answer = await self._read(path, Model)
        if read:
            if answer.id != name:
                raise OrderRefused(f"asked for the model {name!r}, told of {answer.id!r}", param="model")
            await self.vouching.model(answer)
            self._keep(path, answer)
        return answer

    async def escrow(self) -> EscrowKey:
        """What the escrow says of itself, verified. Raises EscrowUntrusted."""
        await self.market()
        read, answer = await self._read("/key", EscrowKey)
        await self.vouching.escrow_key(answer)
        if read:
            self._keep("/key", answer)
        return answer

    async def escrow_key(self) -> PublicKey:
        """The key to seal to, verified. Raises EscrowUntrusted."""
        return await self.vouching.escrow_key(await self.escrow())

    async def box_key(self, provider: int, told: str) -> PublicKey:
        """A provider's key to seal to, as it was told, verified. Raises MarketChanged, ChainContradicts."""
        await self.market()
        return await self.vouching.box_key(provider, told)

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
        """Whoever signs; OrderRefused for a client that has no wallet."""
        if self.signer is None:
            raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
        return self.signer

    async def result_keys(self) -> tuple[SecretKey, ...]:
        """Every key that a result of ours may be sealed to; new jobs name the first."""
        given, first = self.settings.cipher_key, self.settings.cipher_key_first
        async with self._deriving:
            if self._derived is None and self.signer is not None and self.signer.deterministic:
                signature = await self.signer.sign(sealing.to_sign((await self.market()).domains))
                self._derived = result_key_from_signature(signature)
        keys = sealing.key_order(self._derived, given, given_first=first)
        if not keys:
            if self.signer is None:
                raise OrderRefused(NO_WALLET, param="SVC_WALLET_KEY_FILE")
            message = (
                "results are sealed to a key of yours: set SVC_CIPHER_KEY (32 bytes of hex), or say that the wallet"
                " signs the same way each time with SVC_SIGNER_DETERMINISTIC=1 (deterministic=True of a signer)"
            )
            raise OrderRefused(message, param="SVC_CIPHER_KEY")
        return keys

    async def authorised(self, ask: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """`ask` under this wallet's session."""
        return await self.sessions().authorised(ask)

    def sessions(self) -> Sessions:
        if self._sessions is None:
            self._sessions = Sessions(self.transport, self.wallet().address, self._sign_in)
        return self._sessions

    async def _sign_in(self, nonce: str) -> dict[str, str]:
        signer, message = self.wallet(), SvcSession(self.wallet().address, nonce)
        signature = await signer.sign(request("session", (await self.market()).domains.session, message))
        return {"address": hex_of(signer.address), "nonce": nonce, "signature": hex_of(signature)}

    async def _read(self, path: str, kind: type[T]) -> tuple[bool, T]:
        """A kept answer or a fresh one; True with the fresh, which is to be kept once it was found to be good."""
        read_at, kept = self._kept.get(path, (-_FRESH_SECONDS, None))
        if kept is not None and anyio.current_time() - read_at < _FRESH_SECONDS:
            return False, kept
        return True, await self.transport.get(path, kind)

    def _keep(self, path: str, answer: object) -> None:
        self._kept[path] = (anyio.current_time(), answer)
