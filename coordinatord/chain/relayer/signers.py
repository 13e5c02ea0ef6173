"""Signers of the relayer's account: a key in this process, a program, or a service over HTTP.

Each external signature is checked against every field of the requested transaction and against the account. A signer
that is down, slow or wrong raises SignerUnavailable: nothing is stored, and the relays stay queued.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import anyio
import attrs
import msgspec
import structlog
from anyio import to_thread

from common.keccak import keccak256
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from common.strict_json import DECODE_ERRORS
from common.transactions import SignedTransaction, Transaction
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Transport
from coordinatord.chain.signing.signers import (
    SigningFailed,
    SigningProgram,
    decode_signed_hex,
    require_signed_transaction,
    rpc_transaction,
)

log = structlog.get_logger(__name__)

MAX_PARALLEL_SIGNATURES: Final = 8
_MAX_BACKOFF_S: Final = 16.0
_MAX_REASON_CHARS: Final = 200


class SignerUnavailable(Retryable):
    """The signer gave no usable signature. Nothing was stored."""


class AccountSigner(Protocol):
    """Signer for the relayer's account."""

    @property
    def address(self) -> bytes: ...
    async def sign(self, transaction: Transaction) -> SignedTransaction: ...


@attrs.frozen(slots=True)
class WalletSigner:
    """Signer with a key in this process."""

    _wallet: Wallet = attrs.field(repr=False)

    @property
    def address(self) -> bytes:
        return self._wallet.address

    async def sign(self, transaction: Transaction) -> SignedTransaction:
        return transaction.sign(self._wallet)


@attrs.define(slots=True)
class ExternalSigner:
    """External signer with a timeout for each answer and a backoff after each failure."""

    address: bytes
    _request_signature: Callable[[Transaction], Awaitable[bytes]] = attrs.field(repr=False)
    _timeout_s: float
    _clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _backoff_until: float = 0.0

    async def sign(self, transaction: Transaction) -> SignedTransaction:
        if self._clock() < self._backoff_until:
            raise SignerUnavailable(
                "relay_unavailable", "the relayer's signer failed recently and is paused; try again later"
            )
        try:
            with anyio.fail_after(self._timeout_s):
                raw = await self._request_signature(transaction)
        except SigningFailed as failed:
            raise self._record_failure(failed.message) from failed
        except TimeoutError:
            raise self._record_failure(f"no signature within {self._timeout_s:g} s") from None
        if self._failures:
            log.info("signer recovered", account=hex_of(self.address))
        self._failures = 0
        metrics.signer_failing.labels(hex_of(self.address)).set(0)
        return SignedTransaction(raw, keccak256(raw))

    def _record_failure(self, reason: str) -> SignerUnavailable:
        log.warning("signer failed", account=hex_of(self.address), reason=reason)
        metrics.signer_failing.labels(hex_of(self.address)).set(1)
        self._backoff_until = self._clock() + min(_MAX_BACKOFF_S, 0.5 * 2.0 ** min(self._failures, 6))
        self._failures += 1
        return SignerUnavailable("relay_unavailable", f"the relayer's signer gave no signature: {reason}")


def program_signer(program: SigningProgram, address: bytes, timeout_s: float) -> ExternalSigner:
    async def request_signature(transaction: Transaction) -> bytes:
        return await to_thread.run_sync(program.sign, transaction, abandon_on_cancel=True)

    # The program has its own timeout. The longer timeout here covers the thread that runs the program.
    return ExternalSigner(address, request_signature, timeout_s + 1)


class _SignerAnswer(msgspec.Struct):
    result: str | dict[str, object] | None = None
    error: dict[str, object] | None = None


def http_signer(transport: Transport, address: bytes, account: str, timeout_s: float) -> ExternalSigner:
    """Return a signer that uses `eth_signTransaction`, which Web3Signer and nodes with keys serve."""
    setting = "RELAYER_SIGNER_URL"

    async def request_signature(transaction: Transaction) -> bytes:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "eth_signTransaction",
            "params": [rpc_transaction(transaction, account)],
        }
        try:
            status, text = await transport(msgspec.json.encode(body))
        except NoResponse as error:
            raise SigningFailed(f"{setting} does not answer: {error}") from None
        raw = _decode_signer_answer(status, text, setting)
        await to_thread.run_sync(require_signed_transaction, raw, transaction, account, setting)
        return raw

    return ExternalSigner(address, request_signature, timeout_s)


def _decode_signer_answer(status: int, text: bytes, setting: str) -> bytes:
    try:
        answer = msgspec.json.decode(text, type=_SignerAnswer)
    except DECODE_ERRORS:
        raise SigningFailed(f"{setting} answered HTTP {status} without a JSON-RPC body") from None
    if answer.error is not None:
        reason = str(answer.error.get("message", ""))[:_MAX_REASON_CHARS]
        raise SigningFailed(f"{setting} refuses to sign: {reason}")
    found = answer.result.get("raw") if isinstance(answer.result, dict) else answer.result
    try:
        return decode_signed_hex(found)
    except Refused as wrong:
        raise SigningFailed(f"{setting} must answer with the signed transaction in hex: {wrong}") from None


async def sign_in_order(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> tuple[list[SignedTransaction], SignerUnavailable | None]:
    """Return the signatures of the leading transactions, and the failure that stopped the rest, if any. Several
    signatures are requested at once. Signatures after a failed one are discarded, so that nonces have no gap."""
    signed: list[SignedTransaction] = []
    for first in range(0, len(transactions), MAX_PARALLEL_SIGNATURES):
        found = await _sign_batch(signer, transactions[first : first + MAX_PARALLEL_SIGNATURES])
        for answer in found:
            if isinstance(answer, SignerUnavailable):
                return signed, answer
            signed.append(answer)
    return signed, None


async def _sign_batch(
    signer: AccountSigner, transactions: Sequence[Transaction]
) -> list[SignedTransaction | SignerUnavailable]:
    found: dict[int, SignedTransaction | SignerUnavailable] = {}

    async def sign_one(index: int, transaction: Transaction) -> None:
        try:
            found[index] = await signer.sign(transaction)
        except SignerUnavailable as error:
            found[index] = error

    async with anyio.create_task_group() as tasks:
        for index, transaction in enumerate(transactions):
            tasks.start_soon(sign_one, index, transaction)
    return [found[index] for index in range(len(transactions))]
