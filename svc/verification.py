"""Verification of a job, fact by fact: by a signature, by the chain, or not at all."""

from typing import Final

import attrs

from common import quotes
from common.messages.payments import job_payment
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.secp256k1 import recover
from svc.account import Account
from svc.chain import facts
from svc.chain.facts import EndedJob, PostedJob
from svc.chain.node import Chain
from svc.core.market import Market
from svc.errors import ChainContradicts, InternalError, NodeFailed
from svc.jobs import Jobs
from svc.records import ENDED_BECAUSE, BookRow
from svc.results import read_job_id
from svc.vouching import Voucher

_OPEN, _CLAIMED, _SETTLED = 0, 1, 2
_READ_ATTEMPTS: Final = 8  # nodes may be some blocks behind
_READ_PAUSE_SECONDS: Final = 0.75
_STATES: Final = {
    "JobSettled": (_SETTLED, None),
    "JobCancelled": (3, "cancelled"),
    "JobFailed": (3, "provider_fail"),
    "JobReclaimed": (3, "reclaim"),
}


@attrs.frozen(slots=True)
class Vouched:
    """Fact of a job, and what verifies it."""

    fact: str
    value: str
    voucher: Voucher


@attrs.frozen(slots=True)
class Verified:
    """Facts of a job. `checked_on_chain` is False without a node: then nearly all facts are unverified."""

    job_id: str
    facts: tuple[Vouched, ...]
    checked_on_chain: bool


@attrs.frozen
class Verification:
    """Verifies jobs."""

    account: Account
    jobs: Jobs

    async def verify(self, job_id: str) -> Verified:
        """Return the facts of a job. Raises ChainContradicts if the coordinator contradicts the chain."""
        raw = read_job_id(job_id)
        market = await self.account.market()
        row = await self.jobs.row(job_id)
        _require_own_id(raw, row)
        registry = f"chain {market.chain_id}, job registry {hex_of(market.job_registry)}"
        deployment = Vouched("deployment", registry, self.account.vouching.deployment_voucher())
        chain = self.account.vouching.chain
        if chain is None:
            return Verified(hex_of(raw), (deployment, *_unverified_facts(row)), checked_on_chain=False)
        found = await self._on_chain(await self._caught_up(chain), market, raw, row)
        return Verified(hex_of(raw), (deployment, *found, _container(row)), checked_on_chain=True)

    async def _caught_up(self, chain: Chain) -> Chain:
        """Return the nodes at a block that is not older than the coordinator's.

        An older one would seem to contradict it.
        """
        reported = (await self.account.deployment()).head_block
        for attempt in range(_READ_ATTEMPTS):
            if attempt:
                await self.account.transport.sleep(_READ_PAUSE_SECONDS)
            snapshot = chain.later()
            if await snapshot.head() >= reported:
                return snapshot
        raise NodeFailed(f"the nodes are behind the coordinator's block {reported}")

    async def _on_chain(self, chain: Chain, market: Market, raw: bytes, row: BookRow) -> list[Vouched]:
        registry = market.job_registry
        first = row.posted_block  # unverified: where to start the search
        posted = await facts.posted_job(chain, registry, raw, first)
        if posted is None:
            raise ChainContradicts(f"job {hex_of(raw)}", f"a post in block {first}", "has no such job")
        _require_same_order(posted, row)
        amount, voucher = self._amount(market, posted, raw), Voucher.CHAIN
        if amount is not None:
            voucher = Voucher.SIGNATURE if self._is_own(posted.owner) else Voucher.OWNER
        order = posted.order
        found = [
            Vouched("owner", hex_of(posted.owner), Voucher.CHAIN),
            Vouched(
                "order",
                f"model {order.model_id}, {order.sla_secs} s, {_describe_designated(order.designated)}",
                Voucher.CHAIN,
            ),
            Vouched("rates", f"{order.rate_in} in, {order.rate_out} out, per 10^6 units", Voucher.CHAIN),
            Vouched("units", f"{order.units_in} in, at most {order.units_out} out", Voucher.CHAIN),
            Vouched("fees", f"{posted.fees.fee_bps} basis points and {posted.fees.gas_fee}", Voucher.CHAIN),
            Vouched("amount", _describe_amount(posted) if amount is None else f"{amount} base units at most", voucher),
            Vouched("posted", f"block {posted.block}, {hex_of(posted.transaction)}", Voucher.CHAIN),
        ]
        claimed = await facts.claimed_by(chain, registry, raw, posted.block)
        ended = await facts.ended_job(chain, registry, raw, posted.block)
        if row.provider_id != (claimed or 0) and row.state != _OPEN:
            raise ChainContradicts(f"provider of job {hex_of(raw)}", row.provider_id or "none", claimed or "none")
        if claimed is not None:
            found.append(Vouched("claimed by", f"provider {claimed}", Voucher.CHAIN))
        return found + _end(ended, raw, row)

    def _amount(self, market: Market, posted: PostedJob, raw: bytes) -> int | None:
        """Return the amount authorised by the owner's signature, or None if the event has no such signature."""
        order = posted.order
        amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fees)
        payment = job_payment(posted.owner, market.job_registry, amount, order.expires_at, raw)
        signer = recover(market.domains.token.digest(payment), posted.payment_signature)
        return amount if signer == posted.owner else None

    def _is_own(self, owner: bytes) -> bool:
        return self.account.signer is not None and self.account.signer.address == owner


def _require_own_id(raw: bytes, row: BookRow) -> None:
    """Check that the row is of the requested job: its id is the hash of its owner and commitment."""
    try:
        derived_id = quotes.derive_job_id(read_hex(row.owner, 20, "owner"), read_hex(row.c, 32, "c"))
    except Refused:
        derived_id = b""
    if derived_id != raw or row.job_id.lower() != hex_of(raw):
        message = f"requested job {hex_of(raw)}, got another: owner and commitment do not hash to this id"
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


def _end(ended: EndedJob | None, raw: bytes, row: BookRow) -> list[Vouched]:
    name = hex_of(raw)
    if ended is None:
        if row.state == _SETTLED:
            raise ChainContradicts(f"state of job {name}", "settled", "not settled")
        return [Vouched("state", "not ended", Voucher.CHAIN)]
    state, because = _STATES[ended.event]
    settled = state == _SETTLED
    reported, values = ENDED_BECAUSE.get(row.ended_because, "settled"), ended.values
    if settled != (row.state == _SETTLED) and row.state not in {_OPEN, _CLAIMED}:  # the coordinator may be behind
        raise ChainContradicts(f"state of job {name}", reported, ended.event)
    if not settled:
        return [Vouched("state", f"ended by {because}; refunded or never collected", Voucher.CHAIN)]
    result = f"{values['resultCid']} of {values['completionTok']} units"
    reported = f"{row.result_cid} of {row.completion_tok} units"
    if row.state == _SETTLED and reported != result:
        raise ChainContradicts(f"result of job {name}", reported, result)
    shares = f"{values['cost']} to the provider, {values['treasuryShare']} in fees, {values['refund']} refunded"
    return [
        Vouched("state", f"settled in block {ended.block}", Voucher.CHAIN),
        Vouched("result", f"{result}, named by its provider", Voucher.CHAIN),
        Vouched("shares", shares, Voucher.CHAIN),
    ]


def _unverified_facts(row: BookRow) -> tuple[Vouched, ...]:
    """Return the facts that are known without a node."""
    unverified = Voucher.WORD
    return (
        Vouched("id", "hash of the reported owner and commitment", unverified),
        Vouched("owner", row.owner, unverified),
        Vouched("order", f"model {row.model_id}, {row.sla_secs} s, {_describe_designated(row.designated)}", unverified),
        Vouched("rates", f"{row.rate_in} in, {row.rate_out} out, per 10^6 units", unverified),
        Vouched("units", f"{row.units_in} in, at most {row.units_out} out", unverified),
        Vouched("claimed by", f"provider {row.provider_id}" if row.provider_id else "none", unverified),
        Vouched("result", row.result_cid or "none", unverified),
        _container(row),
    )


def _container(row: BookRow) -> Vouched:
    return Vouched("container", f"{row.task_cid}; checked against the commitment by those who open it", Voucher.WORD)


def _describe_designated(designated: int) -> str:
    return f"for provider {designated} only" if designated else "open to all, sealed to the escrow"


def _describe_amount(posted: PostedJob) -> str:
    order = posted.order
    amount = quotes.amount(order.rate_in, order.rate_out, order.units_in, order.units_out, posted.fees)
    return f"{amount} base units at most, as the registry computes it"
