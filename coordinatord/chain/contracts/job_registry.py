"""Job registry: typed reads, and the calldata of its writes."""

from typing import Final

import attrs
import msgspec

from common import abi
from common.api.states import JobState
from common.messages.jobs import Order
from common.quotes import FeeTerms, derive_job_id
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.chain.rpc.chain_data import Hash, Quantity
from coordinatord.chain.rpc.client import Rpc, quantity
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.chain.rpc.views import View, read_view, unreadable

_ORDER: Final = "(bytes32,uint32,uint32,uint128,uint128,uint32,uint32,uint32,uint64)"
_POST: Final = abi.selector(f"post({_ORDER},address,uint256,string,bytes,bytes)")
_POSTED: Final = f"({_ORDER},address,uint16,uint128)"
_CLAIM: Final = abi.selector(f"claim({_POSTED},uint64,bytes,bytes)")
_CLAIM_POSTED: Final = abi.selector("claimPosted(bytes32,uint64,bytes)")
_OWNER_WORD: Final = len(attrs.fields(Order))
_POSTED_WORDS: Final = _OWNER_WORD + 3
_SETTLE: Final = abi.selector(f"settle({_POSTED},uint32,uint64,string,bytes)")
_FAIL: Final = abi.selector(f"fail({_POSTED},uint64,bytes)")
_CANCEL: Final = abi.selector(f"cancel({_POSTED},uint64,bytes)")
_RECLAIM: Final = abi.selector(f"reclaim({_POSTED})")
_JOB: Final = abi.selector("job(bytes32)")
_FEES: Final = abi.selector("fees()")
_MODEL_ENABLED: Final = abi.selector("modelEnabled(uint32)")
_SLA_ALLOWED: Final = abi.selector("slaAllowed(uint32)")
_CLAIM_REFUSAL: Final = abi.selector(f"claimRefusal({_POSTED},address)")

# Events that end a job. The job id is the second topic.
_ENDINGS: Final = [
    hex_of(abi.topic(event))
    for event in (
        "JobSettled(bytes32,uint32,uint32,uint256,uint256,uint256,string)",
        "JobCancelled(bytes32)",
        "JobFailed(bytes32,uint32)",
        "JobReclaimed(bytes32,uint32)",
    )
]

OPEN: Final = JobState.OPEN
CLAIMED: Final = JobState.CLAIMED


class _EndingLog(msgspec.Struct):
    transactionHash: Hash  # noqa: N815 - the node's names
    blockNumber: Quantity  # noqa: N815


@attrs.frozen(slots=True)
class PostedOrder:
    """Order, owner and fee terms of a posted job. The registry stores only their hash, so every call about the job
    passes all of them."""

    order: Order
    owner: bytes
    terms: FeeTerms

    @property
    def job_id(self) -> bytes:
        return derive_job_id(self.owner, self.order.c)


@attrs.frozen(slots=True)
class RegisteredJob:
    """Posted job with the payment signature that a claim needs."""

    posted: PostedOrder
    payment: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class ChainJob:
    """Job as the registry stores it. An expired job is still OPEN here: its expiry is in the terms."""

    state: int
    provider_id: int


@attrs.frozen(slots=True)
class JobRegistry:
    rpc: Rpc
    address: bytes

    async def fees(self) -> FeeTerms:
        return await read_view(self.rpc, self.fees_view(), read_terms)

    async def job(self, job_id: bytes, code: str = "job_read") -> ChainJob | None:
        return await read_view(self.rpc, self.job_view(job_id, code=code), read_job)

    async def claim_refusal(self, posted: PostedOrder, operator: bytes) -> bytes:
        """Return the selector of the first check that a claim fails, or four zero bytes."""
        calldata = abi.call(_CLAIM_REFUSAL, _posted(posted), abi.address(operator))
        view = View(self.address, calldata, "claim_simulate_read")
        return await read_view(self.rpc, view, lambda data: abi.bytes32_at(data, 0)[:4])

    async def head(self) -> int:
        try:
            return quantity(await self.rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise unreadable(error, "job_read") from error

    async def ended_in(self, job_id: bytes, first: int, last: int) -> bytes | None:
        """Return the hash of the transaction in these blocks that ended the job, or None. Halve a range too wide for
        the node."""
        query = {
            "address": hex_of(self.address),
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": [_ENDINGS, hex_of(job_id)],
        }
        try:
            logs = await self.rpc.call_as(list[_EndingLog], "eth_getLogs", query)
        except RpcError as error:
            if error.meaning is not Meaning.RANGE_TOO_WIDE or first == last:
                raise unreadable(error, "job_read") from error
            middle = (first + last) // 2
            return await self.ended_in(job_id, first, middle) or await self.ended_in(job_id, middle + 1, last)
        return bytes.fromhex(logs[0].transactionHash[2:]) if logs else None

    def job_view(self, job_id: bytes, block: str = "latest", code: str = "job_read") -> View:
        return View(self.address, abi.call(_JOB, abi.bytes32(job_id)), code, block=block)

    def fees_view(self) -> View:
        return View(self.address, abi.call(_FEES), "registry_floor_read")

    def model_enabled_view(self, model_id: int) -> View:
        return View(self.address, abi.call(_MODEL_ENABLED, abi.uint(model_id)), "registry_floor_read")

    def sla_allowed_view(self, sla_secs: int) -> View:
        return View(self.address, abi.call(_SLA_ALLOWED, abi.uint(sla_secs)), "registry_floor_read")

    def would_accept(self, calldata: bytes, sender: bytes) -> View:
        """Return the view that tries a write without sending it."""
        return View(self.address, calldata, "rpc_internal", sender)


def read_terms(data: bytes) -> FeeTerms:
    return FeeTerms(fee_bps=abi.uint_at(data, 0, 16), gas_fee=abi.uint_at(data, 1, 128))


def read_job(data: bytes) -> ChainJob | None:
    """Return the job, or None if it does not exist. Words: exists, state, endedBecause, providerId, claimedAt."""
    if not abi.boolean_at(data, 0):
        return None
    return ChainJob(state=abi.uint_at(data, 1, 8), provider_id=abi.uint_at(data, 3, 32))


def post(order: Order, owner: bytes, *, amount: int, task_cid: str, order_signature: bytes, payment: bytes) -> bytes:
    """Return the calldata of a post."""
    return abi.call(
        _POST,
        _order(order),
        abi.address(owner),
        abi.uint(amount),
        abi.text(task_cid),
        abi.dynamic(order_signature),
        abi.dynamic(payment),
    )


def claim(job: RegisteredJob, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CLAIM, _posted(job.posted), abi.uint(issued_at), abi.dynamic(signature), abi.dynamic(job.payment))


def claim_posted(calldata: bytes) -> bytes:
    """Return the short calldata of a claim that directly follows its post in one `relay`. Return other calldata
    unchanged."""
    if calldata[:4] != _CLAIM:
        return calldata
    data, after = calldata[4:], _POSTED_WORDS
    job = derive_job_id(abi.address_at(data, _OWNER_WORD), abi.bytes32_at(data, 0))
    issued_at, signature = abi.uint_at(data, after, 64), abi.bytes_at(data, after + 1, after + 3)
    return abi.call(_CLAIM_POSTED, abi.bytes32(job), abi.uint(issued_at), abi.dynamic(signature))


def settle(posted: PostedOrder, completion_tok: int, issued_at: int, result_cid: str, signature: bytes) -> bytes:
    return abi.call(
        _SETTLE,
        _posted(posted),
        abi.uint(completion_tok),
        abi.uint(issued_at),
        abi.text(result_cid),
        abi.dynamic(signature),
    )


def read_settle(calldata: bytes) -> tuple[str, int]:
    """Return the result's content id and the output units of a settle's calldata. Raise Refused for other calldata."""
    if calldata[:4] != _SETTLE:
        raise Refused("calldata must be that of a settle")
    data, after = calldata[4:], _POSTED_WORDS
    return abi.text_at(data, after + 2, after + 4), abi.uint_at(data, after, 32)


def fail(posted: PostedOrder, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_FAIL, _posted(posted), abi.uint(issued_at), abi.dynamic(signature))


def cancel(posted: PostedOrder, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CANCEL, _posted(posted), abi.uint(issued_at), abi.dynamic(signature))


def reclaim(posted: PostedOrder) -> bytes:
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


def _posted(posted: PostedOrder) -> abi.Words:
    fees = (abi.uint(posted.terms.fee_bps), abi.uint(posted.terms.gas_fee))
    return abi.join((_order(posted.order), abi.address(posted.owner), *fees))
