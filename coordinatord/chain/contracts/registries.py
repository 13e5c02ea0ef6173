"""The job registry: its reads, typed, and the calldata of its writes."""

from typing import Final

import attrs
import msgspec

from common import abi
from common.api.market import AllowlistStatus
from common.api.states import JobState
from common.messages.jobs import Order
from common.messages.providers import AskSnapshot
from common.quotes import Terms, job_id
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.chain.rpc.client import (
    Hash,
    Quantity,
    Reverted,
    Rpc,
    View,
    quantity,
    read_many,
    read_view,
    unreadable,
)
from coordinatord.chain.rpc.errors import Meaning, RpcError

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

OPEN: Final = JobState.OPEN
CLAIMED: Final = JobState.CLAIMED


class _EndingLog(msgspec.Struct):
    transactionHash: Hash  # noqa: N815 - the node's names
    blockNumber: Quantity  # noqa: N815


@attrs.frozen(slots=True)
class PostedOrder:
    """Order, owner and terms that a job was posted with. The registry keeps a hash of it, so every call about the job
    carries it whole."""

    order: Order
    owner: bytes
    terms: Terms

    @property
    def job_id(self) -> bytes:
        return job_id(self.owner, self.order.c)


@attrs.frozen(slots=True)
class RegisteredJob:
    """Event of a job's post: the terms, and the payment's signature that a claim needs."""

    posted: PostedOrder
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

    async def claim_refusal(self, posted: PostedOrder, operator: bytes) -> bytes:
        """The selector of the first failing check of a claim, or four zero bytes."""
        calldata = abi.call(_CLAIM_REFUSAL, _posted(posted), abi.address(operator))
        view = View(self.address, calldata, "claim_simulate_read")
        return await read_view(self.rpc, view, lambda data: abi.bytes32_at(data, 0)[:4])

    async def head(self) -> int:
        try:
            return quantity(await self.rpc.call("eth_blockNumber"))
        except RpcError as error:
            raise unreadable(error, "job_read") from error

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


def claim(job: RegisteredJob, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_CLAIM, _posted(job.posted), abi.uint(issued_at), abi.dynamic(signature), abi.dynamic(job.payment))


def claim_posted(calldata: bytes) -> bytes:
    """Short form of a claim's calldata, for a claim right behind its job's post in one `relay`. Return anything else
    unchanged."""
    if calldata[:4] != _CLAIM:
        return calldata
    data, after = calldata[4:], _POSTED_WORDS
    job = job_id(abi.address_at(data, _OWNER_WORD), abi.bytes32_at(data, 0))
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
    """Content id of the result and output units of a settle's calldata. Raises Refused for what is none."""
    if calldata[:4] != _SETTLE:
        raise Refused("calldata must be a settle's")
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


# The ask registry: the newest time of a provider, whether a transaction published, and a publication's calldata.

_PUBLISH: Final = abi.selector("publish(uint32,uint64,(uint32,uint32,uint128,uint128)[],bytes)")
_LATEST_SIGNED_AT: Final = abi.selector("latestSignedAt(uint32)")
_PUBLISHED: Final = hex_of(abi.topic("AsksPublished(uint32,uint64,(uint32,uint32,uint128,uint128)[])"))


class _Log(msgspec.Struct):
    address: str
    topics: list[str]
    data: str


class _PostReceipt(msgspec.Struct):
    logs: list[_Log]


@attrs.frozen(slots=True)
class AskRegistry:
    rpc: Rpc
    address: bytes

    async def latest_signed_at(self, provider_id: int) -> int:
        """0 when the provider never published."""
        view = View(self.address, abi.call(_LATEST_SIGNED_AT, abi.uint(provider_id)), "registry_floor_read")
        return await read_view(self.rpc, view, lambda data: abi.uint_at(data, 0, 64))

    async def published_in(self, tx_hash: bytes, provider_id: int, signed_at: int) -> bool:
        """True when this mined transaction recorded that snapshot: a stale one is passed over without an event."""
        try:
            receipt = await self.rpc.call_as(_PostReceipt, "eth_getTransactionReceipt", hex_of(tx_hash))
        except RpcError as error:
            raise unreadable(error, "publication_skipped") from error
        topics = [_PUBLISHED, hex_of(abi.uint(provider_id))]
        head = hex_of(abi.uint(signed_at))  # the first word of the data
        return any(
            log.address.lower() == hex_of(self.address) and log.topics == topics and log.data.startswith(head)
            for log in receipt.logs
        )


def publish(snapshot: AskSnapshot, signature: bytes) -> bytes:
    rows = [
        abi.join((abi.uint(q.model_id), abi.uint(q.sla), abi.uint(q.rate_in), abi.uint(q.rate_out)))
        for q in snapshot.quotes
    ]
    return abi.call(
        _PUBLISH,
        abi.uint(snapshot.provider_id),
        abi.uint(snapshot.signed_at),
        abi.array(rows),
        abi.dynamic(signature),
    )


# The provider registry: its reads, typed, and the calldata of its writes.

_PROVIDER_ID_OF: Final = abi.selector("providerIdOf(address)")
_ALLOWLIST_STATUS: Final = abi.selector("allowlistStatus(bytes32)")
_SET_IDENTITY: Final = abi.selector("setIdentity(bytes32,bytes,uint64,bytes)")
_REQUEST_CAPACITY: Final = abi.selector("requestCapacity(uint32,uint64,bytes)")

NOT_LISTED: Final = AllowlistStatus.NOT_LISTED
TOMBSTONED: Final = AllowlistStatus.TOMBSTONED


@attrs.frozen(slots=True)
class ProviderRegistry:
    rpc: Rpc
    address: bytes

    async def provider_id_of(self, operator: bytes) -> int | None:
        """The registry id of a wallet; None when it is not registered."""
        return await read_view(self.rpc, self.provider_id_view(operator), read_provider_id)

    def provider_id_view(self, operator: bytes, block: str = "latest") -> View:
        return View(self.address, abi.call(_PROVIDER_ID_OF, abi.address(operator)), "provider_id_read", block=block)

    async def allowlist_status(self, key: bytes) -> int:
        """NOT_LISTED, 1 (allowed) or TOMBSTONED."""
        view = View(self.address, abi.call(_ALLOWLIST_STATUS, abi.bytes32(key)), "allowlist_status_read")
        return await read_view(self.rpc, view, lambda data: abi.uint_at(data, 0, 8))


def read_provider_id(data: bytes) -> int | None:
    return abi.uint_at(data, 0, 32) or None


def set_identity(box_key: bytes, evidence: bytes, issued_at: int, signature: bytes) -> bytes:
    return abi.call(
        _SET_IDENTITY, abi.bytes32(box_key), abi.dynamic(evidence), abi.uint(issued_at), abi.dynamic(signature)
    )


def request_capacity(n: int, issued_at: int, signature: bytes) -> bytes:
    return abi.call(_REQUEST_CAPACITY, abi.uint(n), abi.uint(issued_at), abi.dynamic(signature))


# The payment token: what a claim depends on, typed.

_BALANCE: Final = abi.selector("balanceOf(address)")
_AUTHORIZATION: Final = abi.selector("authorizationState(address,bytes32)")
_CODE: Final = "claim_simulate_read"


@attrs.frozen(slots=True)
class Funds:
    """Balances by owner, and the authorisations that are used up or cancelled."""

    balances: dict[bytes, int]
    spent: set[bytes]


@attrs.frozen(slots=True)
class PaymentToken:
    rpc: Rpc
    address: bytes

    async def funds(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds:
        """In one request. `jobs`: owner and job id, which is the authorisation's nonce."""
        views = [self.balance_view(owner) for owner in owners]
        views += [
            self._view(abi.call(_AUTHORIZATION, abi.address(owner), abi.bytes32(job_id))) for owner, job_id in jobs
        ]
        answers = [read_balance(answer) for answer in await read_many(self.rpc, views, _CODE)]
        balances = {owner: amount for owner, amount in zip(owners, answers, strict=False) if amount is not None}
        states = answers[len(owners) :]
        return Funds(balances, {job_id for (_, job_id), used in zip(jobs, states, strict=True) if used})

    def balance_view(self, owner: bytes, block: str = "latest") -> View:
        return View(self.address, abi.call(_BALANCE, abi.address(owner)), _CODE, block=block)

    def _view(self, calldata: bytes) -> View:
        return View(self.address, calldata, _CODE)


def read_balance(answer: bytes | Reverted) -> int | None:
    """None for a token that does not answer: then nothing is known against the owner."""
    if isinstance(answer, Reverted) or len(answer) < 32:
        return None
    return abi.uint_at(answer, 0, 256)
