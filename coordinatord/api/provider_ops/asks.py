"""PUT /evm/asks: publish a provider's prices."""

import hashlib
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from common.api import limits
from common.api.fields import SIGNATURE, UINT32, UINT64, UINT128, Nested, Several, wire
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.providers import Ask, AskSnapshot
from common.refusal import Refused
from common.secp256k1 import recover
from coordinatord.base.clock import MAX_AHEAD_S, Clock, is_too_far_ahead
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NotSigned
from coordinatord.chain.contracts import ask_registry
from coordinatord.chain.contracts.ask_registry import AskRegistry
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined

MAX_QUOTES: Final = limits.SNAPSHOT_QUOTES


@attrs.frozen(slots=True)
class QuotedAsk:
    """Rates for one model and window. Two zero rates withdraw the ask."""

    model_id: int = wire(UINT32)
    sla: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)


@attrs.frozen(slots=True)
class SnapshotBody:
    provider_id: int = wire(UINT32, "id of the provider that the signer operates")
    signed_at: int = wire(
        UINT64, "time that is signed along, in Unix seconds: newer than the latest snapshot, at most 3600 s ahead"
    )
    quotes: tuple[QuotedAsk, ...] = wire(Several(Nested(QuotedAsk), MAX_QUOTES))


@attrs.frozen(slots=True)
class AsksBody:
    snapshot: SnapshotBody = wire(Nested(SnapshotBody))
    signature: bytes = wire(SIGNATURE, "the provider wallet's AskSnapshot signature")


@attrs.frozen(slots=True)
class PublishedSnapshot:
    provider_id: int
    signed_at: int
    tx_hash: bytes


@attrs.frozen(slots=True)
class StaleSnapshot:
    """The snapshot is not newer than the latest one. `superseded` means that a newer one is on the chain."""

    superseded: bool


PublishOutcome: TypeAlias = PublishedSnapshot | NotSigned | StaleSnapshot | RefusedByChain | RelayBusy | NoReceipt


@attrs.frozen(slots=True)
class Asks:
    domains: Domains
    registry: AskRegistry
    providers: ProviderRegistry
    budgets: GasBudgets
    relaying: Relaying
    clock: Clock

    async def publish(self, body: AsksBody) -> PublishOutcome:
        snapshot = _snapshot(body.snapshot)
        if is_too_far_ahead(snapshot.signed_at, self.clock()):
            raise _too_far_ahead()
        signer = await self._signer(snapshot, body.signature)
        if isinstance(signer, NotSigned):
            return signer
        latest = await self.registry.latest_signed_at(snapshot.provider_id)
        if latest >= snapshot.signed_at:
            return StaleSnapshot(superseded=False)
        subject = snapshot.provider_id.to_bytes(32, "big")
        calldata = ask_registry.publish(snapshot, body.signature)
        admitted = await self.budgets.admit(RelayKind.PUBLISH, signer, subject, len(calldata))
        outcome = await self.relaying.relay(
            NewRelay(
                kind=RelayKind.PUBLISH,
                subject=subject,
                dedupe=hashlib.sha256(b"publish" + struct_hash(snapshot)).digest(),
                target=self.registry.address,
                calldata=calldata,
                priority=Priority.OP,
                signer=signer,
                gas_estimate=admitted.spending.estimate,
                spending=admitted.spending,
            )
        )
        if isinstance(outcome, RelayMined):
            return await self._published(snapshot, outcome.tx_hash)
        if isinstance(outcome, RefusedByChain) and outcome.name == "StaleSnapshot":
            return await self._overtaken(snapshot)
        if isinstance(outcome, RefusedByChain) and outcome.name == "TooFarAhead":
            # The chain's clock is behind this machine's.
            raise _too_far_ahead()
        return outcome

    async def _signer(self, snapshot: AskSnapshot, signature: bytes) -> bytes | NotSigned:
        """Return the wallet of the provider that the snapshot names, or the refusal."""
        signer = recover(self.domains.asks.digest(snapshot), signature)
        if signer is None:
            return NotSigned(
                "invalid_op_signature",
                "invalid_signature",
                "the signature is malformed: no wallet can be recovered from it",
            )
        provider_id = await self.providers.provider_id_of(signer)
        if provider_id is None:
            return NotSigned("invalid_op_signature", "not_registered", "the signer is not a registered provider")
        if provider_id != snapshot.provider_id:
            return NotSigned("authentication_error", "provider_mismatch", "the signer operates another provider")
        return signer

    async def _published(self, snapshot: AskSnapshot, tx_hash: bytes) -> PublishOutcome:
        """Check the event of a mined publication. The registry skips a stale snapshot without a revert."""
        if await self.registry.published_in(tx_hash, snapshot.provider_id, snapshot.signed_at):
            return PublishedSnapshot(snapshot.provider_id, snapshot.signed_at, tx_hash)
        if await self.registry.latest_signed_at(snapshot.provider_id) >= snapshot.signed_at:
            return StaleSnapshot(superseded=True)
        raise Retryable("relay_unavailable", "the transaction published nothing; send it again", "publication_skipped")

    async def _overtaken(self, snapshot: AskSnapshot) -> StaleSnapshot:
        latest = await self.registry.latest_signed_at(snapshot.provider_id)
        return StaleSnapshot(superseded=latest > snapshot.signed_at)


def _too_far_ahead() -> Refused:
    return Refused(f"signed_at is more than {MAX_AHEAD_S} seconds ahead", "snapshot.signed_at")


def _snapshot(body: SnapshotBody) -> AskSnapshot:
    pairs = [(quote.model_id, quote.sla) for quote in body.quotes]
    if any(before >= after for before, after in pairwise(pairs)):
        raise Refused("quotes must ascend by model_id, then sla, each pair once", "snapshot.quotes")
    quotes = tuple(Ask(q.model_id, q.sla, q.rate_in, q.rate_out) for q in body.quotes)
    return AskSnapshot(body.provider_id, body.signed_at, quotes)
