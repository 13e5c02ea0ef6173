"""The job registry: its reads, typed, and the calldata of its writes."""

from typing import Final

import attrs
import msgspec

from common import abi
from common.messages.jobs import Order
from common.quotes import Terms
from common.scalars import hex_of
from coordinatord.chain.blocks import Hash, Quantity
from coordinatord.chain.rpc import Rpc, quantity
from coordinatord.chain.rpc_errors import Meaning, RpcError
from coordinatord.chain.views import View, read_trouble, read_view

_ORDER: Final = "(bytes32,uint32,uint32,uint128,uint128,uint32,uint32,uint32,uint64)"
_POST: Final = abi.selector(f"post({_ORDER},address,uint256,string,bytes,bytes)")
_CLAIM: Final = abi.selector("claim(bytes32,uint64,bytes,bytes)")
_SETTLE: Final = abi.selector("settle(bytes32,uint32,uint64,string,bytes)")
_FAIL: Final = abi.selector("fail(bytes32,uint64,bytes)")
_CANCEL: Final = abi.selector("cancel(bytes32,uint64,bytes)")
_RECLAIM: Final = abi.selector("reclaim(bytes32)")
_JOB: Final = abi.selector("job(bytes32)")
_FEES: Final = abi.selector("fees()")
_MODEL_ENABLED: Final = abi.selector("modelEnabled(uint32)")
_SLA_ALLOWED: Final = abi.selector("slaAllowed(uint32)")
_CLAIM_REFUSAL: Final = abi.selector("claimRefusal(bytes32,address)")

# What ends a job leaves one of these, with its id as the second topic.
_ENDINGS: Final = [
    hex_of(abi.topic(event))
    for event in (
        "JobSettled(bytes32,uint32,uint32,uint256,uint256,uint256,string)",
        "JobCancelled(bytes32)",
        "JobFailed(bytes32,uint32)",
        "JobReclaimed(bytes32,uint32)",
    )
]

OPEN: Final = 0
CLAIMED: Final = 1
BY_EXPIRY: Final = 5  # no transaction ended it


class _EndingLog(msgspec.Struct):
    transactionHash: Hash  # noqa: N815 - the node's names
    blockNumber: Quantity  # noqa: N815


@attrs.frozen(slots=True)
class ChainJob:
    """A job as the registry holds it, as far as this house looks."""

    owner: bytes
    state: int
    provider_id: int
    ended_because: int = 0


@attrs.frozen(slots=True)
class JobRegistry:
    rpc: Rpc
    address: bytes

    async def fees(self) -> Terms:
        return await read_view(self.rpc, self.fees_view(), read_terms)

    async def job(self, job_id: bytes) -> ChainJob | None:
        return await read_view(self.rpc, self.job_view(job_id), read_job)

    async def claim_refusal(self, job_id: bytes, operator: bytes) -> bytes:
        """The selector of the first failing check of a claim, or four zero bytes."""
        calldata = abi.call(_CLAIM_REFUSAL, abi.bytes32(job_id), abi.address(operator))
        view = View(self.address, calldata, "claim_simulate_read")
        return await read_view(self.rpc, view, lambda data: abi.bytes32_at(data, 0)[:4])

    async def head(self) -> int:
        try:
            return quantity(await self.rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise read_trouble(error, "job_read") from error

    async def ended_in(self, job_id: bytes, first: int, last: int) -> bytes | None:
        """The hash of the transaction in these blocks that ended the job. A range too wide for the node is halved."""
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
                raise read_trouble(error, "job_read") from error
            middle = (first + last) // 2
            return await self.ended_in(job_id, first, middle) or await self.ended_in(job_id, middle + 1, last)
        return bytes.fromhex(logs[0].transactionHash[2:]) if logs else None

    def job_view(self, job_id: bytes, block: str = "latest") -> View:
        return View(self.address, abi.call(_JOB, abi.bytes32(job_id)), "job_read", block=block)

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

    Words: owner, modelId, slaSecs, state, endedBecause, feeBps, rateIn, rateOut, unitsIn, unitsOut, designated,
    providerId, expiresAt, claimedAt, gasFee."""
    owner = abi.address_at(data, 0)
    if not any(owner):
        return None
    return ChainJob(
        owner=owner,
        state=abi.uint_at(data, 3, 8),
        provider_id=abi.uint_at(data, 11, 32),
        ended_because=abi.uint_at(data, 4, 8),
    )


def post(order: Order, owner: bytes, *, amount: int, task_cid: str, order_signature: bytes, payment: bytes) -> bytes:
    """Calldata; so are the others below."""
    return abi.call(
        _POST,
        abi.join(
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
        ),
        abi.address(owner),
        abi.uint(amount),
        abi.text(task_cid),
        abi.dynamic(order_signature),
        abi.dynamic(payment),
    )


def claim(job_id: bytes, issued_at: int, signature: bytes, payment: bytes) -> bytes:
    return abi.call(_CLAIM, abi.bytes32(job_id), abi.uint(issued_at), abi.dynamic(signature), abi.dynamic(payment))


def settle(job_id: bytes, completion_tok: int, issued_at: int, result_cid: str, signature: bytes) -> bytes:
    return abi.call(
        _SETTLE,
        abi.bytes32(job_id),
        abi.uint(completion_tok),
        abi.uint(issued_at),
        abi.text(result_cid),
        abi.dynamic(signature),
    )


def fail(job_id: bytes, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_FAIL, abi.bytes32(job_id), abi.uint(issued_at), abi.dynamic(signature))


def cancel(job_id: bytes, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CANCEL, abi.bytes32(job_id), abi.uint(issued_at), abi.dynamic(signature))


def reclaim(job_id: bytes) -> bytes:
    return abi.call(_RECLAIM, abi.bytes32(job_id))
