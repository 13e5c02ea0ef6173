"""Verify the facts of a job with signatures and with the chain. Without a node, most facts stay unverified."""

from typing import Final

import attrs

from common import quotes
from common.messages.payments import job_payment
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.secp256k1 import recover_address
from svc.account import Account
from svc.chain import facts
from svc.chain.facts import EndedJob, PostedJob
from svc.chain.node import Chain
from svc.core.market import VerifiedMarket
from svc.errors import ChainContradicts, InternalError, NodeFailed
from svc.jobs import Jobs
from svc.market_verifier import VerificationSource
from svc.records import CODE_BY_ENDED_BECAUSE, BookRow
from svc.results import read_job_id

_OPEN, _CLAIMED, _SETTLED = 0, 1, 2
_MAX_CHAIN_READS: Final = 8  # nodes that are some blocks behind are read again
_READ_PAUSE_S: Final = 0.75
_STATE_BY_EVENT: Final = {
    "JobSettled": (_SETTLED, None),
    "JobCancelled": (3, "cancelled"),
    "JobFailed": (3, "provider_fail"),
    "JobReclaimed": (3, "reclaim"),
}


@attrs.frozen(slots=True)
class SourcedFact:
    """Fact of a job, with the source that verifies it."""

    fact: str
    value: str
    source: VerificationSource


@attrs.frozen(slots=True)
class VerifiedJob:
    """Facts of a job. Without a node, `checked_on_chain` is False, and all facts but the deployment are unverified."""

    job_id: str
    facts: tuple[SourcedFact, ...]
    checked_on_chain: bool


@attrs.frozen
class Verification:
    """Compares the coordinator's reports about a job with signatures and with the chain."""

    account: Account
    jobs: Jobs

    async def verify(self, job_id: str) -> VerifiedJob:
        """Return the facts of a job. Raises ChainContradicts if the coordinator contradicts the chain."""
        id_bytes = read_job_id(job_id)
        market = await self.account.market()
        row = await self.jobs.row(job_id)
        _require_requested_job(id_bytes, row)
        registry = f"chain {market.chain_id}, job registry {hex_of(market.job_registry)}"
        deployment = SourcedFact("deployment", registry, self.account.market_verifier.deployment_source())
        chain = self.account.market_verifier.chain
        if chain is None:
            return VerifiedJob(hex_of(id_bytes), (deployment, *_unverified_facts(row)), checked_on_chain=False)
        found = await self._chain_facts(await self._wait_for_nodes(chain), market, id_bytes, row)
        return VerifiedJob(hex_of(id_bytes), (deployment, *found, _container_fact(row)), checked_on_chain=True)

    async def _wait_for_nodes(self, chain: Chain) -> Chain:
        """Wait until the nodes have the coordinator's newest block. Return a snapshot of the nodes.

        With an older block, correct reports of the coordinator would seem wrong.
        """
        reported = (await self.account.deployment()).head_block
        for attempt in range(_MAX_CHAIN_READS):
            if attempt:
                await self.account.transport.sleep(_READ_PAUSE_S)
            snapshot = chain.new_snapshot()
            if await snapshot.head() >= reported:
                return snapshot
        raise NodeFailed(f"the nodes are behind the coordinator's block {reported}: retry, or set other nodes")

    async def _chain_facts(
        self, chain: Chain, market: VerifiedMarket, id_bytes: bytes, row: BookRow
    ) -> list[SourcedFact]:
        registry = market.job_registry
        first_block = row.posted_block  # unverified; a wrong block only makes the search fail
        posted = await facts.find_posted_job(chain, registry, id_bytes, first_block)
        if posted is None:
            raise ChainContradicts(f"job {hex_of(id_bytes)}", f"a post in block {first_block}", "has no such job")
        _require_same_order(posted, row)
        amount, source = self._authorised_amount(market, posted, id_bytes), VerificationSource.CHAIN
        if amount is not None:
            source = VerificationSource.SIGNATURE if self._is_own_wallet(posted.owner) else VerificationSource.OWNER
        order = posted.order
        found = [
            SourcedFact("owner", hex_of(posted.owner), VerificationSource.CHAIN),
            SourcedFact(
                "order",
                f"model {order.model_id}, {order.sla_secs} s, {_describe_designated(order.designated)}",
                VerificationSource.CHAIN,
            ),
            SourcedFact("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units", VerificationSource.CHAIN),
            SourcedFact("units", f"{order.units_in} in, at most {order.units_out} out", VerificationSource.CHAIN),
            SourcedFact(
                "fees",
                f"{posted.fee_terms.fee_bps} basis points and {posted.fee_terms.gas_fee} base units",
                VerificationSource.CHAIN,
            ),
            SourcedFact(
                "amount", _describe_amount(posted) if amount is None else f"{amount} base units at most", source
            ),
            SourcedFact("posted", f"block {posted.block}, {hex_of(posted.transaction)}", VerificationSource.CHAIN),
        ]
        claimed = await facts.find_claimer(chain, registry, id_bytes, posted.block)
        ended = await facts.find_ended_job(chain, registry, id_bytes, posted.block)
        if row.provider_id != (claimed or 0) and row.state != _OPEN:
            raise ChainContradicts(f"provider of job {hex_of(id_bytes)}", row.provider_id or "none", claimed or "none")
        if claimed is not None:
            found.append(SourcedFact("claimed by", f"provider {claimed}", VerificationSource.CHAIN))
        return found + _end_facts(ended, id_bytes, row)

    def _authorised_amount(self, market: VerifiedMarket, posted: PostedJob, id_bytes: bytes) -> int | None:
        """Return the amount that the owner's signature authorises, or None if the event lacks the signature."""
        order = posted.order
        amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fee_terms)
        payment = job_payment(posted.owner, market.job_registry, amount, order.expires_at, id_bytes)
        signer = recover_address(market.domains.token.digest(payment), posted.payment_signature)
        return amount if signer == posted.owner else None

    def _is_own_wallet(self, owner: bytes) -> bool:
        return self.account.signer is not None and self.account.signer.address == owner


def _require_requested_job(id_bytes: bytes, row: BookRow) -> None:
    """Check that the row is for the requested job: the job's id is the hash of its owner and commitment."""
    try:
        derived_id = quotes.derive_job_id(read_hex(row.owner, 20, "owner"), read_hex(row.c, 32, "c"))
    except Refused:
        derived_id = b""
    if derived_id != id_bytes or row.job_id.lower() != hex_of(id_bytes):
        message = f"the coordinator returned another job: owner and commitment do not hash to the id {hex_of(id_bytes)}"
        raise InternalError(message, type_=InternalError.type, status=200)


def _require_same_order(posted: PostedJob, row: BookRow) -> None:
    order = posted.order
    pairs = {
        "owner": (row.owner.lower(), hex_of(posted.owner)),
        "c": (row.c.lower(), hex_of(order.c)),
        "model_id": (row.model_id, order.model_id),
        "sla_secs": (row.sla_secs, order.sla_secs),
        "designated": (row.designated, order.designated),
        "rate_in": (row.rate_in, order.rate_in),
        "rate_out": (row.rate_out, order.rate_out),
        "units_in": (row.units_in, order.units_in),
        "units_out": (row.units_out, order.units_out),
        "expires_at": (row.expires_at, order.expires_at),
        "task_cid": (row.task_cid, posted.task_cid),
    }
    for name, (reported, on_chain) in pairs.items():
        if reported != on_chain:
            raise ChainContradicts(f"{name} of job {row.job_id}", reported, on_chain)


def _end_facts(ended: EndedJob | None, id_bytes: bytes, row: BookRow) -> list[SourcedFact]:
    name = hex_of(id_bytes)
    if ended is None:
        if row.state == _SETTLED:
            raise ChainContradicts(f"state of job {name}", "settled", "not settled")
        return [SourcedFact("state", "not ended", VerificationSource.CHAIN)]
    state, because = _STATE_BY_EVENT[ended.event]
    settled = state == _SETTLED
    reported, values = CODE_BY_ENDED_BECAUSE.get(row.ended_because, "settled"), ended.values
    if settled != (row.state == _SETTLED) and row.state not in {_OPEN, _CLAIMED}:  # the coordinator may be behind
        raise ChainContradicts(f"state of job {name}", reported, ended.event)
    if not settled:
        return [
            SourcedFact(
                "state",
                f"ended without a result ({because}); the payment was refunded or never collected",
                VerificationSource.CHAIN,
            )
        ]
    result = f"{values['resultCid']}, {values['completionTok']} units"
    reported = f"{row.result_cid}, {row.completion_tok} units"
    if row.state == _SETTLED and reported != result:
        raise ChainContradicts(f"result of job {name}", reported, result)
    shares = f"{values['cost']} to the provider, {values['treasuryShare']} in fees, {values['refund']} refunded"
    return [
        SourcedFact("state", f"settled in block {ended.block}", VerificationSource.CHAIN),
        SourcedFact("result", f"{result}, as its provider reported", VerificationSource.CHAIN),
        SourcedFact("shares", shares, VerificationSource.CHAIN),
    ]


def _unverified_facts(row: BookRow) -> tuple[SourcedFact, ...]:
    """Return the facts of a job as the coordinator reports them, marked as unverified."""
    unverified = VerificationSource.UNVERIFIED
    return (
        SourcedFact("id", "hash of the reported owner and commitment", unverified),
        SourcedFact("owner", row.owner, unverified),
        SourcedFact(
            "order", f"model {row.model_id}, {row.sla_secs} s, {_describe_designated(row.designated)}", unverified
        ),
        SourcedFact("rates", f"{row.rate_in} in, {row.rate_out} out, per 10^6 units", unverified),
        SourcedFact("units", f"{row.units_in} in, at most {row.units_out} out", unverified),
        SourcedFact("claimed by", f"provider {row.provider_id}" if row.provider_id else "none", unverified),
        SourcedFact("result", row.result_cid or "none", unverified),
        _container_fact(row),
    )


def _container_fact(row: BookRow) -> SourcedFact:
    fact = f"{row.task_cid}; the recipient checks the container against the commitment"
    return SourcedFact("container", fact, VerificationSource.UNVERIFIED)


def _describe_designated(designated: int) -> str:
    return f"for provider {designated} only" if designated else "open to all, sealed to the escrow"


def _describe_amount(posted: PostedJob) -> str:
    order = posted.order
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fee_terms)
    return f"{amount} base units at most, computed from the order"
