"""The job registry: its reads, typed, and the calldata of its writes."""

from typing import Final

import attrs

from common import abi
from common.messages.jobs import Order
from common.quotes import Terms, job_id
from coordinatord.chain.rpc import Rpc
from coordinatord.chain.views import View, read_view

_ORDER: Final = "(bytes32,uint32,uint32,uint128,uint128,uint32,uint32,uint32,uint64)"
_POST: Final = abi.selector(f"post({_ORDER},address,uint256,string,bytes,bytes)")
_POSTED: Final = f"({_ORDER},address,uint16,uint128)"
_CLAIM: Final = abi.selector(f"claim({_POSTED},uint64,bytes,bytes)")
_SETTLE: Final = abi.selector(f"settle({_POSTED},uint32,uint64,string,bytes)")
_FAIL: Final = abi.selector(f"fail({_POSTED},uint64,bytes)")
_CANCEL: Final = abi.selector(f"cancel({_POSTED},uint64,bytes)")
_RECLAIM: Final = abi.selector(f"reclaim({_POSTED})")
_JOB: Final = abi.selector("job(bytes32)")
_FEES: Final = abi.selector("fees()")
_MODEL_ENABLED: Final = abi.selector("modelEnabled(uint32)")
_SLA_ALLOWED: Final = abi.selector("slaAllowed(uint32)")
_CLAIM_REFUSAL: Final = abi.selector(f"claimRefusal({_POSTED},address)")

OPEN: Final = 0
CLAIMED: Final = 1


@attrs.frozen(slots=True)
class Posted:
    """What a job was posted on. The registry keeps a hash of it, so every call about the job carries it whole."""

    order: Order
    owner: bytes
    terms: Terms

    @property
    def job_id(self) -> bytes:
        return job_id(self.owner, self.order.c)


@attrs.frozen(slots=True)
class PostedJob:
    """What the event of a job's post tells: the terms, and the payment's signature that a claim needs."""

    posted: Posted
    payment: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class ChainJob:
    """A job as the registry holds it. An open one past its expiry is OPEN here: the expiry is in its terms."""

    state: int
    provider_id: int


@attrs.frozen(slots=True)
class JobRegistry:
    rpc: Rpc
    address: bytes

    async def fees(self) -> Terms:
        return await read_view(self.rpc, self.fees_view(), read_terms)

    async def job(self, job_id: bytes, code: str = "job_read") -> ChainJob | None:
        return await read_view(self.rpc, self.job_view(job_id, code=code), read_job)

    async def claim_refusal(self, posted: Posted, operator: bytes) -> bytes:
        """The selector of the first failing check of a claim, or four zero bytes."""
        calldata = abi.call(_CLAIM_REFUSAL, _posted(posted), abi.address(operator))
        view = View(self.address, calldata, "claim_simulate_read")
        return await read_view(self.rpc, view, lambda data: abi.bytes32_at(data, 0)[:4])

    def job_view(self, job_id: bytes, block: str = "latest", code: str = "job_read") -> View:
        return View(self.address, abi.call(_JOB, abi.bytes32(job_id)), code, block=block)

    def fees_view(self) -> View:
        return View(self.address, abi.call(_FEES), "registry_floor_read")

    def model_enabled_view(self, model_id: int) -> View:
        return View(self.address, abi.call(_MODEL_ENABLED, abi.uint(model_id)), "registry_floor_read")

    def sla_allowed_view(self, sla_secs: int) -> View:
        return View(self.address, abi.call(_SLA_ALLOWED, abi.uint(sla_secs)), "registry_floor_read")

    def would_accept(self, calldata: bytes, sender: bytes) -> View:
        """A write, tried without sending it."""
        return View(self.address, calldata, "rpc_internal", sender)


def read_terms(data: bytes) -> Terms:
    return Terms(fee_bps=abi.uint_at(data, 0, 16), gas_fee=abi.uint_at(data, 1, 128))


def read_job(data: bytes) -> ChainJob | None:
    """None where there is no such job.

    Words: exists, state, endedBecause, providerId, claimedAt."""
    if not abi.boolean_at(data, 0):
        return None
    return ChainJob(state=abi.uint_at(data, 1, 8), provider_id=abi.uint_at(data, 3, 32))


def post(order: Order, owner: bytes, *, amount: int, task_cid: str, order_signature: bytes, payment: bytes) -> bytes:
    """Calldata; so are the others below."""
    return abi.call(
        _POST,
        _order(order),
        abi.address(owner),
        abi.uint(amount),
        abi.text(task_cid),
        abi.dynamic(order_signature),
        abi.dynamic(payment),
    )


def claim(job: PostedJob, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CLAIM, _posted(job.posted), abi.uint(issued_at), abi.dynamic(signature), abi.dynamic(job.payment))


def settle(posted: Posted, completion_tok: int, issued_at: int, result_cid: str, signature: bytes) -> bytes:
    return abi.call(
        _SETTLE,
        _posted(posted),
        abi.uint(completion_tok),
        abi.uint(issued_at),
        abi.text(result_cid),
        abi.dynamic(signature),
    )


def fail(posted: Posted, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_FAIL, _posted(posted), abi.uint(issued_at), abi.dynamic(signature))


def cancel(posted: Posted, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CANCEL, _posted(posted), abi.uint(issued_at), abi.dynamic(signature))


def reclaim(posted: Posted) -> bytes:
    return abi.call(_RECLAIM, _posted(posted))


def _order(order: Order) -> abi.Words:
    return abi.join(
        (
            abi.bytes32(order.c),
            abi.uint(order.model_id),
            abi.uint(order.sla_secs),
            abi.uint(order.rate_in),
            abi.uint(order.rate_out),
            abi.uint(order.units_in),
            abi.uint(order.units_out),
            abi.uint(order.designated),
            abi.uint(order.expires_at),
        )
    )


def _posted(posted: Posted) -> abi.Words:
    fees = (abi.uint(posted.terms.fee_bps), abi.uint(posted.terms.gas_fee))
    return abi.join((_order(posted.order), abi.address(posted.owner), *fees))
