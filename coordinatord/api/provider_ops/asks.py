"""PUT /evm/asks: publish a provider's prices."""

import hashlib
from itertools import pairwise
from typing import Final, TypeAlias

import attrs

from common.api import limits
from common.api.fields import SIGNATURE, UINT32, UINT64, UINT128, ListOf, NestedObject, body_field
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.providers import Ask, AskSnapshot
from common.refusal import Refused
from common.secp256k1 import recover_address
from coordinatord.base.clock import MAX_SIGNED_AHEAD_S, Clock, is_too_far_ahead
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import Unauthorised
from coordinatord.chain.contracts import ask_registry
from coordinatord.chain.contracts.ask_registry import AskRegistry
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined

MAX_QUOTES: Final = limits.MAX_SNAPSHOT_QUOTES


@attrs.frozen(slots=True)
class QuotedAsk:
    """Rates for one model and window. Two zero rates withdraw the ask."""

    model_id: int = body_field(UINT32)
    sla: int = body_field(UINT32)
    rate_in: int = body_field(UINT128)
    rate_out: int = body_field(UINT128)


@attrs.frozen(slots=True)
class SnapshotBody:
    provider_id: int = body_field(UINT32, "id of the provider that the signer operates")
    signed_at: int = body_field(
        UINT64, "signed time in Unix seconds, newer than the latest snapshot and at most 3600 s ahead"
    )
    quotes: tuple[QuotedAsk, ...] = body_field(ListOf(NestedObject(QuotedAsk), MAX_QUOTES))


@attrs.frozen(slots=True)
class AsksBody:
    snapshot: SnapshotBody = body_field(NestedObject(SnapshotBody))
    signature: bytes = body_field(SIGNATURE, "the provider wallet's AskSnapshot signature")


@attrs.frozen(slots=True)
class PublishedSnapshot:
    provider_id: int
    signed_at: int
    tx_hash: bytes


@attrs.frozen(slots=True)
class StaleSnapshot:
    """Outcome for a snapshot that is not newer than the provider's latest snapshot. `superseded` means that another
    snapshot was published while the request's snapshot was being relayed."""

    superseded: bool


PublishOutcome: TypeAlias = PublishedSnapshot | Unauthorised | StaleSnapshot | RefusedByChain | RelayBusy | NoReceipt


@attrs.frozen(slots=True)
class AskPublisher:
    domains: Domains
    registry: AskRegistry
    providers: ProviderRegistry
    budgets: GasBudgets
    relaying: Relaying
    clock: Clock

    async def publish_snapshot(self, body: AsksBody) -> PublishOutcome:
        snapshot = _build_ask_snapshot(body.snapshot)
        if is_too_far_ahead(snapshot.signed_at, self.clock()):
            raise _too_far_ahead_error()
        signer = await self._check_signer(snapshot, body.signature)
        if isinstance(signer, Unauthorised):
            return signer
        latest = await self.registry.read_latest_signed_at(snapshot.provider_id)
        if latest >= snapshot.signed_at:
            return StaleSnapshot(superseded=False)
        subject = snapshot.provider_id.to_bytes(32, "big")
        calldata = ask_registry.publish_calldata(snapshot, body.signature)
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
                gas_estimate=admitted.spending.gas_estimate,
                spending=admitted.spending,
            )
        )
        if isinstance(outcome, RelayMined):
            return await self._check_published(snapshot, outcome.tx_hash)
        if isinstance(outcome, RefusedByChain) and outcome.name == "StaleSnapshot":
            return await self._read_staleness(snapshot)
        if isinstance(outcome, RefusedByChain) and outcome.name == "TooFarAhead":
            # The chain's clock is behind this machine's.
            raise _too_far_ahead_error()
        return outcome

    async def _check_signer(self, snapshot: AskSnapshot, signature: bytes) -> bytes | Unauthorised:
        """Return the wallet that signed the snapshot, or the refusal if this wallet does not operate the snapshot's
        provider."""
        signer = recover_address(self.domains.asks.digest(snapshot), signature)
        if signer is None:
            return Unauthorised(
                "invalid_op_signature",
                "invalid_signature",
                "the signature is malformed: no wallet can be recovered from it",
            )
        provider_id = await self.providers.read_provider_id(signer)
        if provider_id is None:
            return Unauthorised("invalid_op_signature", "not_registered", "the signer is not a registered provider")
        if provider_id != snapshot.provider_id:
            return Unauthorised("authentication_error", "provider_mismatch", "the signer operates another provider")
        return signer

    async def _check_published(self, snapshot: AskSnapshot, tx_hash: bytes) -> PublishOutcome:
        """Check the event of a mined publication. The registry skips a stale snapshot without a revert."""
        if await self.registry.was_published_in(tx_hash, snapshot.provider_id, snapshot.signed_at):
            return PublishedSnapshot(snapshot.provider_id, snapshot.signed_at, tx_hash)
        if await self.registry.read_latest_signed_at(snapshot.provider_id) >= snapshot.signed_at:
            return StaleSnapshot(superseded=True)
        raise Retryable(
            "relay_unavailable", "the transaction published nothing; send the asks again", "publication_skipped"
        )

    async def _read_staleness(self, snapshot: AskSnapshot) -> StaleSnapshot:
        latest = await self.registry.read_latest_signed_at(snapshot.provider_id)
        return StaleSnapshot(superseded=latest > snapshot.signed_at)


def _too_far_ahead_error() -> Refused:
    return Refused(f"signed_at must be at most {MAX_SIGNED_AHEAD_S} seconds ahead of now", "snapshot.signed_at")


def _build_ask_snapshot(body: SnapshotBody) -> AskSnapshot:
    pairs = [(quote.model_id, quote.sla) for quote in body.quotes]
    if any(before >= after for before, after in pairwise(pairs)):
        raise Refused("quotes must be sorted by model_id, then sla, without a repeated pair", "snapshot.quotes")
    quotes = tuple(Ask(q.model_id, q.sla, q.rate_in, q.rate_out) for q in body.quotes)
    return AskSnapshot(body.provider_id, body.signed_at, quotes)
