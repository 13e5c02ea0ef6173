"""External signers of the relayer's account: a program, or a service over HTTP.

Each signature is checked against every field of the requested transaction and against the account. A signer that is
down, slow or wrong raises SignerUnavailable: nothing is stored, and the relays stay queued.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import attrs
import msgspec
import structlog
from anyio import to_thread

from common.keccak import keccak256
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import UNREADABLE
from common.transactions import SignedTransaction, Transaction
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Transport
from coordinatord.chain.signing.signers import SigningFailed, SigningProgram, as_json, read_raw, require_signed

log = structlog.get_logger(__name__)

_MAX_BACKOFF_S: Final = 16.0
_MAX_REASON_CHARS: Final = 200


class SignerUnavailable(Retryable):
    """The signer gave no usable signature. Nothing was stored."""


@attrs.define(slots=True)
class OutsideSigner:
    """External signer with a timeout for each answer and a backoff after each failure."""

    address: bytes
    _ask: Callable[[Transaction], Awaitable[bytes]] = attrs.field(repr=False)
    _seconds: float
    _clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _rests_until: float = 0.0

    async def sign(self, transaction: Transaction) -> SignedTransaction:
        if self._clock() < self._rests_until:
            raise SignerUnavailable("relay_unavailable", "the relayer's signer failed a moment ago")
        try:
            with anyio.fail_after(self._seconds):
                raw = await self._ask(transaction)
        except SigningFailed as failed:
            raise self._failed(failed.message) from failed
        except TimeoutError:
            raise self._failed(f"no signature within {self._seconds:g} s") from None
        if self._failures:
            log.info("signer recovered", account=hex_of(self.address))
        self._failures = 0
        metrics.signer_failing.labels(hex_of(self.address)).set(0)
        return SignedTransaction(raw, keccak256(raw))

    def _failed(self, reason: str) -> SignerUnavailable:
        log.warning("signer failed", account=hex_of(self.address), reason=reason)
        metrics.signer_failing.labels(hex_of(self.address)).set(1)
        self._rests_until = self._clock() + min(_MAX_BACKOFF_S, 0.5 * 2.0 ** min(self._failures, 6))
        self._failures += 1
        return SignerUnavailable("relay_unavailable", f"the relayer's signer gave no signature: {reason}")


def by_program(program: SigningProgram, address: bytes, seconds: float) -> OutsideSigner:
    async def ask(transaction: Transaction) -> bytes:
        return await to_thread.run_sync(program.sign, transaction, abandon_on_cancel=True)

    # The program has its own timeout. This one covers the thread.
    return OutsideSigner(address, ask, seconds + 1)


class _Answer(msgspec.Struct):
    result: str | dict[str, object] | None = None
    error: dict[str, object] | None = None


def by_http(transport: Transport, address: bytes, account: str, seconds: float) -> OutsideSigner:
    """Return a signer that uses `eth_signTransaction`, as served by Web3Signer and by nodes with keys."""
    setting = "RELAYER_SIGNER_URL"

    async def ask(transaction: Transaction) -> bytes:
        body = {"jsonrpc": "2.0", "id": 1, "method": "eth_signTransaction", "params": [as_json(transaction, account)]}
        try:
            status, text = await transport(msgspec.json.encode(body))
        except NoResponse as error:
            raise SigningFailed(f"{setting} does not answer: {error}") from None
        raw = _read(status, text, setting)
        await to_thread.run_sync(require_signed, raw, transaction, account, setting)
        return raw

    return OutsideSigner(address, ask, seconds)


def _read(status: int, text: bytes, setting: str) -> bytes:
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except UNREADABLE:
        raise SigningFailed(f"{setting} answers with HTTP {status} and no JSON-RPC") from None
    if answer.error is not None:
        reason = str(answer.error.get("message", ""))[:_MAX_REASON_CHARS]
        raise SigningFailed(f"{setting} refuses to sign: {reason}")
    found = answer.result.get("raw") if isinstance(answer.result, dict) else answer.result
    try:
        return read_raw(found)
    except Refused as wrong:
        raise SigningFailed(f"{setting} must answer with the signed transaction in hex: {wrong}") from None
