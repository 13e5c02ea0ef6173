"""Read the job registry, and encode calls to it."""

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
from coordinatord.chain.rpc.client import Rpc, decode_quantity
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.rpc.views import View, read_view, view_error

_ORDER_TYPE: Final = "(bytes32,uint32,uint32,uint128,uint128,uint32,uint32,uint32,uint64)"
_POST_SELECTOR: Final = abi.selector(f"post({_ORDER_TYPE},address,uint256,string,bytes,bytes)")
_POSTED_TYPE: Final = f"({_ORDER_TYPE},address,uint16,uint128)"
_CLAIM_SELECTOR: Final = abi.selector(f"claim({_POSTED_TYPE},uint64,bytes,bytes)")
_CLAIM_POSTED_SELECTOR: Final = abi.selector("claimPosted(bytes32,uint64,bytes)")
_OWNER_WORD_INDEX: Final = len(attrs.fields(Order))
_POSTED_WORD_COUNT: Final = _OWNER_WORD_INDEX + 3
_SETTLE_SELECTOR: Final = abi.selector(f"settle({_POSTED_TYPE},uint32,uint64,string,bytes)")
_FAIL_SELECTOR: Final = abi.selector(f"fail({_POSTED_TYPE},uint64,bytes)")
_CANCEL_SELECTOR: Final = abi.selector(f"cancel({_POSTED_TYPE},uint64,bytes)")
_RECLAIM_SELECTOR: Final = abi.selector(f"reclaim({_POSTED_TYPE})")
_JOB_SELECTOR: Final = abi.selector("job(bytes32)")
_FEES_SELECTOR: Final = abi.selector("fees()")
_MODEL_ENABLED_SELECTOR: Final = abi.selector("modelEnabled(uint32)")
_SLA_ALLOWED_SELECTOR: Final = abi.selector("slaAllowed(uint32)")
_CLAIM_REFUSAL_SELECTOR: Final = abi.selector(f"claimRefusal({_POSTED_TYPE},address)")

# Events that end a job. The job id is the second topic.
_ENDING_TOPICS: Final = [
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
    """Job as the registry stores it. An expired job is still OPEN here, because the registry stores no change when a
    job expires."""

    state: int
    provider_id: int


@attrs.frozen(slots=True)
class JobRegistry:
    rpc: Rpc
    address: bytes

    async def read_fees(self) -> FeeTerms:
        return await read_view(self.rpc, self.fees_view(), decode_terms)

    async def read_job(self, job_id: bytes, code: str = "job_read") -> ChainJob | None:
        return await read_view(self.rpc, self.job_view(job_id, code=code), decode_job)

    async def read_claim_refusal(self, posted: PostedOrder, operator: bytes) -> bytes:
        """Return the selector of the error with which the registry would refuse this claim, or four zero bytes if the
        registry would accept the claim."""
        calldata = abi.call_data(_CLAIM_REFUSAL_SELECTOR, _posted_words(posted), abi.address(operator))
        view = View(self.address, calldata, "claim_simulate_read")
        return await read_view(self.rpc, view, lambda data: abi.bytes32_at(data, 0)[:4])

    async def read_head(self) -> int:
        try:
            return decode_quantity(await self.rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise view_error(error, "job_read") from error

    async def find_ending(self, job_id: bytes, first: int, last: int) -> bytes | None:
        """Return the hash of the transaction in these blocks that ended the job, or None. Split a range that is too
        wide for the node in half."""
        query = {
            "address": hex_of(self.address),
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": [_ENDING_TOPICS, hex_of(job_id)],
        }
        try:
            logs = await self.rpc.call_as(list[_EndingLog], "eth_getLogs", query)
        except RpcError as error:
            if error.kind is not RpcErrorKind.RANGE_TOO_WIDE or first == last:
                raise view_error(error, "job_read") from error
            middle = (first + last) // 2
            return await self.find_ending(job_id, first, middle) or await self.find_ending(job_id, middle + 1, last)
        return bytes.fromhex(logs[0].transactionHash[2:]) if logs else None

    def job_view(self, job_id: bytes, block: str = "latest", code: str = "job_read") -> View:
        return View(self.address, abi.call_data(_JOB_SELECTOR, abi.bytes32(job_id)), code, block=block)

    def fees_view(self) -> View:
        return View(self.address, abi.call_data(_FEES_SELECTOR), "registry_floor_read")

    def model_enabled_view(self, model_id: int) -> View:
        return View(self.address, abi.call_data(_MODEL_ENABLED_SELECTOR, abi.uint(model_id)), "registry_floor_read")

    def sla_allowed_view(self, sla_secs: int) -> View:
        return View(self.address, abi.call_data(_SLA_ALLOWED_SELECTOR, abi.uint(sla_secs)), "registry_floor_read")

    def simulation_view(self, calldata: bytes, sender: bytes) -> View:
        """Return a view that simulates a transaction with this calldata."""
        return View(self.address, calldata, "rpc_internal", sender)


def decode_terms(data: bytes) -> FeeTerms:
    return FeeTerms(fee_bps=abi.uint_at(data, 0, 16), gas_fee=abi.uint_at(data, 1, 128))


def decode_job(data: bytes) -> ChainJob | None:
    """Return the job, or None if it does not exist. Words: exists, state, endedBecause, providerId, claimedAt."""
    if not abi.boolean_at(data, 0):
        return None
    return ChainJob(state=abi.uint_at(data, 1, 8), provider_id=abi.uint_at(data, 3, 32))


def post_calldata(
    order: Order, owner: bytes, *, amount: int, task_cid: str, order_signature: bytes, payment: bytes
) -> bytes:
    return abi.call_data(
        _POST_SELECTOR,
        _order_words(order),
        abi.address(owner),
        abi.uint(amount),
        abi.dynamic_string(task_cid),
        abi.dynamic_bytes(order_signature),
        abi.dynamic_bytes(payment),
    )


def claim_calldata(job: RegisteredJob, issued_at: int, signature: bytes) -> bytes:
    return abi.call_data(
        _CLAIM_SELECTOR,
        _posted_words(job.posted),
        abi.uint(issued_at),
        abi.dynamic_bytes(signature),
        abi.dynamic_bytes(job.payment),
    )


def shorten_claim_calldata(calldata: bytes) -> bytes:
    """Return the short calldata of a claim that directly follows its post in one `relay`. Return other calldata
    unchanged."""
    if calldata[:4] != _CLAIM_SELECTOR:
        return calldata
    data, after = calldata[4:], _POSTED_WORD_COUNT
    job = derive_job_id(abi.address_at(data, _OWNER_WORD_INDEX), abi.bytes32_at(data, 0))
    issued_at, signature = abi.uint_at(data, after, 64), abi.bytes_at(data, after + 1, after + 3)
    return abi.call_data(_CLAIM_POSTED_SELECTOR, abi.bytes32(job), abi.uint(issued_at), abi.dynamic_bytes(signature))


def settle_calldata(
    posted: PostedOrder, completion_tok: int, issued_at: int, result_cid: str, signature: bytes
) -> bytes:
    return abi.call_data(
        _SETTLE_SELECTOR,
        _posted_words(posted),
        abi.uint(completion_tok),
        abi.uint(issued_at),
        abi.dynamic_string(result_cid),
        abi.dynamic_bytes(signature),
    )


def decode_settle(calldata: bytes) -> tuple[str, int]:
    """Return the result's content id and the output units in the calldata of a settle. Raise Refused for other
    calldata."""
    if calldata[:4] != _SETTLE_SELECTOR:
        raise Refused("the calldata is not that of a settle")
    data, after = calldata[4:], _POSTED_WORD_COUNT
    return abi.text_at(data, after + 2, after + 4), abi.uint_at(data, after, 32)


def fail_calldata(posted: PostedOrder, issued_at: int, signature: bytes) -> bytes:
    return abi.call_data(_FAIL_SELECTOR, _posted_words(posted), abi.uint(issued_at), abi.dynamic_bytes(signature))


def cancel_calldata(posted: PostedOrder, issued_at: int, signature: bytes) -> bytes:
    return abi.call_data(_CANCEL_SELECTOR, _posted_words(posted), abi.uint(issued_at), abi.dynamic_bytes(signature))


def reclaim_calldata(posted: PostedOrder) -> bytes:
    return abi.call_data(_RECLAIM_SELECTOR, _posted_words(posted))


def _order_words(order: Order) -> abi.Words:
    return abi.static_struct(
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


def _posted_words(posted: PostedOrder) -> abi.Words:
    fees = (abi.uint(posted.terms.fee_bps), abi.uint(posted.terms.gas_fee))
    return abi.static_struct((_order_words(posted.order), abi.address(posted.owner), *fees))
