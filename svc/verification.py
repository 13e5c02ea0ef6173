"""Verify the facts of a job. Each fact is verified by a signature, by the chain, or not at all."""

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
from svc.core.market import Market
from svc.errors import ChainContradicts, InternalError, NodeFailed
from svc.jobs import Jobs
from svc.records import CODE_BY_END, BookRow
from svc.results import read_job_id
from svc.vouching import Voucher

_OPEN, _CLAIMED, _SETTLED = 0, 1, 2
_MAX_CHAIN_READS: Final = 8  # nodes may be some blocks behind
_READ_PAUSE_S: Final = 0.75
_STATE_BY_EVENT: Final = {
    "JobSettled": (_SETTLED, None),
    "JobCancelled": (3, "cancelled"),
    "JobFailed": (3, "provider_fail"),
    "JobReclaimed": (3, "reclaim"),
}


@attrs.frozen(slots=True)
class VouchedFact:
    """Fact of a job, with the source that verifies it."""

    fact: str
    value: str
    voucher: Voucher


@attrs.frozen(slots=True)
class VerifiedJob:
    """Facts of a job. Without a node, `checked_on_chain` is False and nearly all facts are unverified."""

    job_id: str
    facts: tuple[VouchedFact, ...]
    checked_on_chain: bool


@attrs.frozen
class Verification:
    """Verifies jobs."""

    account: Account
    jobs: Jobs

    async def verify(self, job_id: str) -> VerifiedJob:
        """Return the facts of a job. Raises ChainContradicts if the coordinator contradicts the chain."""
        raw = read_job_id(job_id)
        market = await self.account.market()
        row = await self.jobs.row(job_id)
        _require_requested_job(raw, row)
        registry = f"chain {market.chain_id}, job registry {hex_of(market.job_registry)}"
        deployment = VouchedFact("deployment", registry, self.account.vouching.deployment_voucher())
        chain = self.account.vouching.chain
        if chain is None:
            return VerifiedJob(hex_of(raw), (deployment, *_unverified_facts(row)), checked_on_chain=False)
        found = await self._chain_facts(await self._wait_for_nodes(chain), market, raw, row)
        return VerifiedJob(hex_of(raw), (deployment, *found, _container_fact(row)), checked_on_chain=True)

    async def _wait_for_nodes(self, chain: Chain) -> Chain:
        """Wait until the nodes have the coordinator's newest block, and return a snapshot at the nodes' head.

        Facts from an older block would seem to contradict the coordinator.
        """
        reported = (await self.account.deployment()).head_block
        for attempt in range(_MAX_CHAIN_READS):
            if attempt:
                await self.account.transport.sleep(_READ_PAUSE_S)
            snapshot = chain.new_snapshot()
            if await snapshot.head() >= reported:
                return snapshot
        raise NodeFailed(f"the nodes are behind the coordinator's block {reported}: retry, or set other nodes")

    async def _chain_facts(self, chain: Chain, market: Market, raw: bytes, row: BookRow) -> list[VouchedFact]:
        registry = market.job_registry
        first_block = row.posted_block  # unverified, but only the start of the search
        posted = await facts.find_posted_job(chain, registry, raw, first_block)
        if posted is None:
            raise ChainContradicts(f"job {hex_of(raw)}", f"a post in block {first_block}", "has no such job")
        _require_same_order(posted, row)
        amount, voucher = self._authorised_amount(market, posted, raw), Voucher.CHAIN
        if amount is not None:
            voucher = Voucher.SIGNATURE if self._is_own(posted.owner) else Voucher.OWNER
        order = posted.order
        found = [
            VouchedFact("owner", hex_of(posted.owner), Voucher.CHAIN),
            VouchedFact(
                "order",
                f"model {order.model_id}, {order.sla_secs} s, {_describe_designated(order.designated)}",
                Voucher.CHAIN,
            ),
            VouchedFact("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units", Voucher.CHAIN),
            VouchedFact("units", f"{order.units_in} in, at most {order.units_out} out", Voucher.CHAIN),
            VouchedFact("fees", f"{posted.fees.fee_bps} basis points and {posted.fees.gas_fee}", Voucher.CHAIN),
            VouchedFact(
                "amount", _describe_amount(posted) if amount is None else f"{amount} base units at most", voucher
            ),
            VouchedFact("posted", f"block {posted.block}, {hex_of(posted.transaction)}", Voucher.CHAIN),
        ]
        claimed = await facts.find_claimer(chain, registry, raw, posted.block)
        ended = await facts.find_ended_job(chain, registry, raw, posted.block)
        if row.provider_id != (claimed or 0) and row.state != _OPEN:
            raise ChainContradicts(f"provider of job {hex_of(raw)}", row.provider_id or "none", claimed or "none")
        if claimed is not None:
            found.append(VouchedFact("claimed by", f"provider {claimed}", Voucher.CHAIN))
        return found + _end_facts(ended, raw, row)

    def _authorised_amount(self, market: Market, posted: PostedJob, raw: bytes) -> int | None:
        """Return the amount that the owner's signature authorises, or None if the event lacks the signature."""
        order = posted.order
        amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fees)
        payment = job_payment(posted.owner, market.job_registry, amount, order.expires_at, raw)
        signer = recover_address(market.domains.token.digest(payment), posted.payment_signature)
        return amount if signer == posted.owner else None

    def _is_own(self, owner: bytes) -> bool:
        return self.account.signer is not None and self.account.signer.address == owner


def _require_requested_job(raw: bytes, row: BookRow) -> None:
    """Check that the row is for the requested job. A job's id is the hash of its owner and commitment."""
    try:
        derived_id = quotes.derive_job_id(read_hex(row.owner, 20, "owner"), read_hex(row.c, 32, "c"))
    except Refused:
        derived_id = b""
    if derived_id != raw or row.job_id.lower() != hex_of(raw):
        message = f"the coordinator returned another job: owner and commitment do not hash to the id {hex_of(raw)}"
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


def _end_facts(ended: EndedJob | None, raw: bytes, row: BookRow) -> list[VouchedFact]:
    name = hex_of(raw)
    if ended is None:
        if row.state == _SETTLED:
            raise ChainContradicts(f"state of job {name}", "settled", "not settled")
        return [VouchedFact("state", "not ended", Voucher.CHAIN)]
    state, because = _STATE_BY_EVENT[ended.event]
    settled = state == _SETTLED
    reported, values = CODE_BY_END.get(row.ended_because, "settled"), ended.values
    if settled != (row.state == _SETTLED) and row.state not in {_OPEN, _CLAIMED}:  # the coordinator may be behind
        raise ChainContradicts(f"state of job {name}", reported, ended.event)
    if not settled:
        return [VouchedFact("state", f"ended by {because}; refunded or never collected", Voucher.CHAIN)]
    result = f"{values['resultCid']} of {values['completionTok']} units"
    reported = f"{row.result_cid} of {row.completion_tok} units"
    if row.state == _SETTLED and reported != result:
        raise ChainContradicts(f"result of job {name}", reported, result)
    shares = f"{values['cost']} to the provider, {values['treasuryShare']} in fees, {values['refund']} refunded"
    return [
        VouchedFact("state", f"settled in block {ended.block}", Voucher.CHAIN),
        VouchedFact("result", f"{result}, named by its provider", Voucher.CHAIN),
        VouchedFact("shares", shares, Voucher.CHAIN),
    ]


def _unverified_facts(row: BookRow) -> tuple[VouchedFact, ...]:
    """Return the facts that are known without a node."""
    unverified = Voucher.UNVERIFIED
    return (
        VouchedFact("id", "hash of the reported owner and commitment", unverified),
        VouchedFact("owner", row.owner, unverified),
        VouchedFact(
            "order", f"model {row.model_id}, {row.sla_secs} s, {_describe_designated(row.designated)}", unverified
        ),
        VouchedFact("rates", f"{row.rate_in} in, {row.rate_out} out, per 10^6 units", unverified),
        VouchedFact("units", f"{row.units_in} in, at most {row.units_out} out", unverified),
        VouchedFact("claimed by", f"provider {row.provider_id}" if row.provider_id else "none", unverified),
        VouchedFact("result", row.result_cid or "none", unverified),
        _container_fact(row),
    )


def _container_fact(row: BookRow) -> VouchedFact:
    fact = f"{row.task_cid}; the recipient checks the container against the commitment"
    return VouchedFact("container", fact, Voucher.UNVERIFIED)


def _describe_designated(designated: int) -> str:
    return f"for provider {designated} only" if designated else "open to all, sealed to the escrow"


def _describe_amount(posted: PostedJob) -> str:
    order = posted.order
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fees)
    return f"{amount} base units at most, as the registry computes it"
