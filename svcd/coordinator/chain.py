"""Verify claims on the chain through the provider's own node, so that svcd runs only jobs that are paid for.

The registry's view `job` shows a claim only after the registry collected the payment. The event JobPosted has the terms
and the payment's signature, which covers the amount. The token's `authorizationState` shows that the payment was used.
`svcd check` also reads the contracts' code, their signing domains and the provider's registration.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain, islice
from typing import Any, Final, TypeVar

import attrs
import httpx
import trio

from common import abi, quotes
from common.address_book import AddressBook
from common.api.states import JobState
from common.artifacts import event_topic, load_artifact
from common.contract_events import call_data, event_values, order_of, returned_values
from common.domains import Domains
from common.inclusion.node_values import bytes_from_hex, read_bytes, read_bytes_list, read_quantity
from common.messages.payments import job_payment
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import recover_address
from svc.wire.json_rpc import Call, Node, NodeFailed
from svcd.base.errors import Unavailable
from svcd.journal.book_row import Job

T = TypeVar("T")

_JOB_REGISTRY: Final = load_artifact("JobRegistry")
_PROVIDER_REGISTRY: Final = load_artifact("ProviderRegistry")
_DOMAIN_SEPARATOR_SELECTOR: Final = abi.selector("DOMAIN_SEPARATOR()")
_AUTHORIZATION_STATE_SELECTOR: Final = abi.selector("authorizationState(address,bytes32)")
_BALANCE_OF_SELECTOR: Final = abi.selector("balanceOf(address)")
_MAX_ANSWER_BYTES: Final = 4 << 20
_NODE_TIMEOUT_S: Final = 15.0  # of a request, and of the wait for earlier requests
_MAX_CONCURRENT_REQUESTS: Final = 8  # hosted nodes limit the rate
_MAX_CLAIMS_PER_BATCH: Final = 30  # with three calls each; hosted nodes accept about 100 calls
_MAX_REORG_BLOCKS: Final = 128  # a reorg may move a post by up to this many blocks
_COMPARED_TERMS: Final = (
    *("c", "model_id", "sla_secs", "rate_in", "rate_out"),
    *("units_in", "units_out", "designated", "expires_at"),
)


@attrs.frozen(slots=True)
class Claimed:
    """The claim and the payment are on the chain, with the terms that the coordinator reported."""


@attrs.frozen(slots=True)
class NotClaimed:
    """The node's current block shows no paid claim of the provider. A retry may help."""

    detail: str


@attrs.frozen(slots=True)
class Contradicted:
    """The terms on the chain differ from the coordinator's report, or the payment is wrong. A retry does not help."""

    detail: str


ClaimStatus = Claimed | NotClaimed | Contradicted


@attrs.frozen(slots=True)
class Registration:
    """Provider's entry in the registry."""

    provider_id: int
    listed: bool
    box_key: bytes  # zeros if no key was published


@attrs.define(slots=True, eq=False)
class _PendingCalls:
    """Calls of one caller. If the node refuses a batch of several callers, `was_refused` makes each caller send its
    calls separately."""

    calls: Sequence[Call]
    results: list[Any] | None = None
    failure: NodeFailed | None = None
    was_refused: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.results is None and self.failure is None and not self.was_refused


@attrs.frozen(slots=True, eq=False)
class ChainReader:
    """Reads the chain from the provider's node. The node's URL may contain a key, so no message or log shows the
    URL."""

    http: httpx.AsyncClient
    url: str = attrs.field(repr=False)
    address_book: AddressBook
    provider_id: int
    _node: Node = attrs.field(
        init=False, default=attrs.Factory(lambda self: Node(self.url, self.http, _MAX_ANSWER_BYTES), takes_self=True)
    )
    _request_limiter: trio.CapacityLimiter = attrs.field(
        init=False, factory=lambda: trio.CapacityLimiter(_MAX_CONCURRENT_REQUESTS)
    )
    _batch_lock: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _pending: list[_PendingCalls] = attrs.field(init=False, factory=list)

    async def claim_status(self, job: Job) -> ClaimStatus:
        """Compare the job with the chain. Raise `Unavailable` if the node's answer is missing or malformed."""
        used = abi.call_data(_AUTHORIZATION_STATE_SELECTOR, abi.address(job.owner), abi.bytes32(job.job_id))
        try:
            registered, logged, authorization_state = await self.call_node_batch(
                _build_eth_call(self.address_book.job_registry, _encode_job_call(job.job_id)),
                ("eth_getLogs", [self._job_posted_filter(job)]),
                _build_eth_call(self.address_book.paytoken, used),
            )
            registered_job = returned_values(_JOB_REGISTRY, "job", bytes_from_hex(registered, "answer to eth_call"))
            if registered_job["state"] != JobState.CLAIMED or registered_job["providerId"] != self.provider_id:
                return NotClaimed(
                    f"the job has state {registered_job['state']} and provider {registered_job['providerId']}"
                )
            if job.claimed_at and registered_job["claimedAt"] != job.claimed_at:
                return Contradicted(
                    f"claimed_at is {registered_job['claimedAt']} on the chain,"
                    f" but the coordinator reported {job.claimed_at}"
                )
            posted = _decode_posted(logged)
            if posted is None:
                return NotClaimed(f"the chain has no post of the job near block {job.posted_block}")
            return _find_difference(job, posted) or self._check_payment(
                job, posted, bytes_from_hex(authorization_state, "answer to eth_call")
            )
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None

    async def chain_id(self) -> int:
        try:
            return read_quantity({"chainId": await self.call_node("eth_chainId")}, "chainId")
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None

    async def find_wrong_contracts(self) -> list[str]:
        """Describe each contract that is missing, or whose signing domain differs from the address book."""
        domains, found = Domains.of(self.address_book), []
        try:
            for domain in (domains.jobs, domains.providers, domains.asks, domains.token):
                contract = domain.domain.verifying_contract or b""
                name = f"{domain.domain.name} at {hex_of(contract)}"
                if not bytes_from_hex(await self.call_node("eth_getCode", hex_of(contract), "latest"), "eth_getCode"):
                    found.append(f"{name} has no code")
                elif await self.call_view(contract, abi.call_data(_DOMAIN_SEPARATOR_SELECTOR)) != domain.separator:
                    found.append(f"{name} has another signing domain")
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None
        return found

    async def read_registration(self, operator: bytes) -> Registration | None:
        registry = self.address_book.provider_registry
        try:
            data = call_data(_PROVIDER_REGISTRY, "providerIdOf", abi.address(operator))
            if not (provider_id := abi.uint_at(await self.call_view(registry, data), 0, 32)):
                return None
            data = call_data(_PROVIDER_REGISTRY, "provider", abi.uint(provider_id))
            found = returned_values(_PROVIDER_REGISTRY, "provider", await self.call_view(registry, data))
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None
        return Registration(provider_id, found["listed"], found["boxKey"])

    async def allows_window(self, seconds: int) -> bool:
        try:
            data = call_data(_JOB_REGISTRY, "slaAllowed", abi.uint(seconds))
            return abi.boolean_at(await self.call_view(self.address_book.job_registry, data), 0)
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None

    def _job_posted_filter(self, job: Job) -> dict[str, Any]:
        return {
            "address": hex_of(self.address_book.job_registry),
            "topics": [hex_of(event_topic(_JOB_REGISTRY, "JobPosted")), hex_of(job.job_id)],
            "fromBlock": hex(max(0, job.posted_block - _MAX_REORG_BLOCKS)),
            "toBlock": hex(job.posted_block + _MAX_REORG_BLOCKS),
        }

    def _check_payment(self, job: Job, posted: Mapping[str, Any], authorization_state: bytes) -> ClaimStatus:
        """Check that the owner's payment covers the whole order and was collected."""
        terms = quotes.FeeTerms(fee_bps=posted["feeBps"], gas_fee=posted["gasFee"])
        amount = quotes.amount(job.rate_in, job.rate_out, job.units_in, job.units_out, terms)
        payment = job_payment(job.owner, self.address_book.job_registry, amount, job.expires_at, job.job_id)
        if recover_address(Domains.of(self.address_book).token.digest(payment), posted["paySig"]) != job.owner:
            return Contradicted(f"the owner did not sign a payment of {amount}")
        if not abi.boolean_at(authorization_state, 0):
            return NotClaimed("the payment was not collected")
        return Claimed()

    async def find_missing_funds(self, owner: bytes, job_id: bytes, amount: int) -> str | None:
        """Return the reason why a claim could not collect the payment now, or None."""
        token = self.address_book.paytoken
        try:
            used = abi.call_data(_AUTHORIZATION_STATE_SELECTOR, abi.address(owner), abi.bytes32(job_id))
            if abi.boolean_at(await self.call_view(token, used), 0):
                return "the payment was used or cancelled"
            balance = abi.uint_at(
                await self.call_view(token, abi.call_data(_BALANCE_OF_SELECTOR, abi.address(owner))), 0, 256
            )
        except Refused as malformed:
            raise Unavailable(f"the node's answer is malformed: {malformed.message}") from None
        return f"the owner has only {balance} of the {amount} base units" if balance < amount else None

    async def call_view(self, contract: bytes, data: bytes) -> bytes:
        method, params = _build_eth_call(contract, data)
        return bytes_from_hex(await self.call_node(method, *params), "answer to eth_call")

    async def call_node(self, method: str, *params: Any) -> Any:
        """Return the node's result of one call. Raise `Unavailable` if the call fails."""
        return await self._request_within(self._request_limiter, lambda: self._node.call(method, *params))

    async def call_node_batch(self, *calls: Call) -> list[Any]:
        """Return the node's results of several calls. Raise `Unavailable` if one of them fails.

        A block may have hundreds of claims. Only one batch is under way at a time, and the callers that wait for its
        end share the next batch.
        """
        own = _PendingCalls(calls)
        self._pending.append(own)
        try:
            await self._request_within(self._batch_lock, lambda: self._send_pending(own))
        finally:
            self._pending.remove(own)
        if own.was_refused:
            own.results = await self._request_within(self._request_limiter, lambda: self._node.call_batch(calls))
        if own.results is None:  # the node does not support batches
            return [await self.call_node(method, *params) for method, params in calls]
        return own.results

    async def _send_pending(self, own: _PendingCalls) -> None:
        """Send the calls of `own` and of other waiting callers in one batch, unless an earlier batch had those of
        `own`."""
        if own.failure is not None:
            raise own.failure
        if not own.is_waiting:
            return
        batch = [each for each in self._pending if each.is_waiting][:_MAX_CLAIMS_PER_BATCH]
        results = None
        try:
            results = await self._node.call_batch(list(chain.from_iterable(each.calls for each in batch)))
        except NodeFailed as failed:
            if failed.retryable or len(batch) == 1:
                for each in batch:
                    each.failure = failed
                raise
        if results is not None:
            remaining = iter(results)
            for each in batch:
                each.results = list(islice(remaining, len(each.calls)))
        elif len(batch) > 1:
            for each in batch:
                each.was_refused = True

    async def _request_within(self, limit: AbstractAsyncContextManager[Any], request: Callable[[], Awaitable[T]]) -> T:
        try:
            with trio.fail_after(_NODE_TIMEOUT_S) as timeout:
                async with limit:
                    timeout.deadline = trio.current_time() + _NODE_TIMEOUT_S
                    return await request()
        except trio.TooSlowError:
            raise Unavailable(f"the node {self._node.name} does not answer in time") from None
        except NodeFailed as failed:
            raise Unavailable(str(failed)) from None


def _build_eth_call(contract: bytes, data: bytes) -> Call:
    return "eth_call", [{"to": hex_of(contract), "data": hex_of(data)}, "latest"]


def _decode_posted(logs: Any) -> dict[str, Any] | None:
    if not isinstance(logs, list) or not all(isinstance(log, Mapping) for log in logs):
        raise Refused("the answer to eth_getLogs must be a list of logs")
    if not logs:
        return None
    return event_values(
        _JOB_REGISTRY, "JobPosted", read_bytes_list(logs[-1], "topics", 32), read_bytes(logs[-1], "data")
    )


def _encode_job_call(job_id: bytes) -> bytes:
    return call_data(_JOB_REGISTRY, "job", abi.bytes32(job_id))


def _find_difference(job: Job, posted: Mapping[str, Any]) -> Contradicted | None:
    order = order_of(posted)
    pairs = {name: (getattr(job, name), getattr(order, name)) for name in _COMPARED_TERMS}
    pairs |= {"owner": (job.owner, posted["owner"]), "task_cid": (job.task_cid, posted["taskCid"])}
    for name, (reported, found) in pairs.items():
        if reported != found:
            on_chain, by_coordinator = _format_value(found), _format_value(reported)
            return Contradicted(f"{name} is {on_chain} on the chain, but the coordinator reported {by_coordinator}")
    return None


def _format_value(value: object) -> str:
    return hex_of(value) if isinstance(value, bytes) else str(value)
