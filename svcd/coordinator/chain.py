"""Verify claims on the chain through the provider's own node, so that svcd runs only jobs that are paid for.

The registry's view `job` shows a claim only after it collected the payment. The event JobPosted has the terms and the
payment's signature, which covers the amount. The token's `authorizationState` shows that the payment was used. Values
are read by name (`common/contract_events.py`), independent of the storage layout. `svcd check` also reads the
contracts' code, their signing domains and the provider's registration.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import httpx
import trio

from common import abi, quotes
from common.address_book import AddressBook
from common.api.states import JobState
from common.artifacts import event_topic, load
from common.contract_events import call_data, event_values, order_of, returned_values
from common.domains import Domains
from common.inclusion.node_values import octets, octets_of, quantity, texts
from common.messages.payments import job_payment
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import recover
from svc.wire.json_rpc import Call, Node, NodeFailed
from svcd.base.errors import Unavailable
from svcd.journal.book_row import Job

T = TypeVar("T")

_JOBS: Final = load("JobRegistry")
_PROVIDERS: Final = load("ProviderRegistry")
_DOMAIN_SEPARATOR: Final = abi.selector("DOMAIN_SEPARATOR()")
_AUTHORIZATION_STATE: Final = abi.selector("authorizationState(address,bytes32)")
_BALANCE_OF: Final = abi.selector("balanceOf(address)")
_MAX_ANSWER_BYTES: Final = 4 << 20
_NODE_TIMEOUT_S: Final = 15.0  # including the wait for a free request
_MAX_REQUESTS: Final = 8  # at a time: hosted nodes limit the rate, and a block may have hundreds of claims
_MAX_REORG_BLOCKS: Final = 128  # a reorg may move a post this far from the reported block
_TERMS: Final = (
    *("c", "model_id", "sla_secs", "rate_in", "rate_out"),
    *("units_in", "units_out", "designated", "expires_at"),
)


@attrs.frozen(slots=True)
class Claimed:
    """Claimed by this provider and paid for, on the terms that the coordinator reported."""


@attrs.frozen(slots=True)
class NotClaimed:
    """Not claimed by this provider at the node's current block."""

    why: str


@attrs.frozen(slots=True)
class Contradicted:
    """The chain has other terms than the coordinator reported, or a wrong payment. A retry would not help."""

    why: str


Standing = Claimed | NotClaimed | Contradicted


@attrs.frozen(slots=True)
class Registered:
    """Provider in the registry."""

    provider_id: int
    listed: bool
    box_key: bytes  # zeros: none was published


@attrs.frozen(slots=True, eq=False)
class ChainReader:
    """Reader of the provider's node. Its address may contain a key, so no message or log shows it."""

    http: httpx.AsyncClient
    url: str = attrs.field(repr=False)
    book: AddressBook
    provider_id: int
    _node: Node = attrs.field(
        init=False, default=attrs.Factory(lambda self: Node(self.url, self.http, _MAX_ANSWER_BYTES), takes_self=True)
    )
    _turns: trio.CapacityLimiter = attrs.field(init=False, factory=lambda: trio.CapacityLimiter(_MAX_REQUESTS))

    async def standing(self, job: Job) -> Standing:
        """Compare the job with the chain. Raise `Unavailable` for a missing or malformed answer."""
        used = abi.call(_AUTHORIZATION_STATE, abi.address(job.owner), abi.bytes32(job.job_id))
        try:
            registered, logged, collected = await self.ask_together(
                _viewing(self.book.job_registry, _job_call(job.job_id)),
                ("eth_getLogs", [self._posting(job)]),
                _viewing(self.book.paytoken, used),
            )
            held = returned_values(_JOBS, "job", octets_of(registered, "answer to eth_call"))
            if held["state"] != JobState.CLAIMED or held["providerId"] != self.provider_id:
                return NotClaimed(f"state {held['state']}, provider {held['providerId']}")
            if job.claimed_at and held["claimedAt"] != job.claimed_at:
                return Contradicted(f"claimed at {held['claimedAt']}, and not at {job.claimed_at}")
            posted = _posted(logged)
            if posted is None:
                return NotClaimed(f"no such post near block {job.posted_block}")
            return _differing(job, posted) or self._paid(job, posted, octets_of(collected, "answer to eth_call"))
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None

    async def chain_id(self) -> int:
        try:
            return quantity({"chainId": await self.ask("eth_chainId")}, "chainId")
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None

    async def wrong_contracts(self) -> list[str]:
        """Describe the address book's contracts that are missing or have another signing domain."""
        domains, found = Domains.of(self.book), []
        try:
            for domain in (domains.jobs, domains.providers, domains.asks, domains.token):
                contract = domain.domain.verifying_contract or b""
                name = f"{domain.domain.name} at {hex_of(contract)}"
                if not octets_of(await self.ask("eth_getCode", hex_of(contract), "latest"), "eth_getCode"):
                    found.append(f"{name} has no code")
                elif await self.view(contract, abi.call(_DOMAIN_SEPARATOR)) != domain.separator:
                    found.append(f"{name} has another signing domain")
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None
        return found

    async def registered(self, operator: bytes) -> Registered | None:
        registry = self.book.provider_registry
        try:
            asked = call_data(_PROVIDERS, "providerIdOf", abi.address(operator))
            if not (provider_id := abi.uint_at(await self.view(registry, asked), 0, 32)):
                return None
            asked = call_data(_PROVIDERS, "provider", abi.uint(provider_id))
            found = returned_values(_PROVIDERS, "provider", await self.view(registry, asked))
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None
        return Registered(provider_id, found["listed"], found["boxKey"])

    async def allows_window(self, seconds: int) -> bool:
        try:
            asked = call_data(_JOBS, "slaAllowed", abi.uint(seconds))
            return abi.boolean_at(await self.view(self.book.job_registry, asked), 0)
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None

    def _posting(self, job: Job) -> dict[str, Any]:
        return {
            "address": hex_of(self.book.job_registry),
            "topics": [hex_of(event_topic(_JOBS, "JobPosted")), hex_of(job.job_id)],
            "fromBlock": hex(max(0, job.posted_block - _MAX_REORG_BLOCKS)),
            "toBlock": hex(job.posted_block + _MAX_REORG_BLOCKS),
        }

    def _paid(self, job: Job, posted: Mapping[str, Any], collected: bytes) -> Standing:
        """Check that the owner's payment covers the whole order and was collected."""
        terms = quotes.FeeTerms(fee_bps=posted["feeBps"], gas_fee=posted["gasFee"])
        amount = quotes.amount(job.rate_in, job.rate_out, job.units_in, job.units_out, terms)
        payment = job_payment(job.owner, self.book.job_registry, amount, job.expires_at, job.job_id)
        if recover(Domains.of(self.book).token.digest(payment), posted["paySig"]) != job.owner:
            return Contradicted(f"the payment is not signed by the owner for {amount}")
        if not abi.boolean_at(collected, 0):
            return NotClaimed("the payment was not collected")
        return Claimed()

    async def lacks_funds(self, owner: bytes, job_id: bytes, amount: int) -> str | None:
        """Return why a claim could not collect the payment now, or None."""
        token = self.book.paytoken
        try:
            used = abi.call(_AUTHORIZATION_STATE, abi.address(owner), abi.bytes32(job_id))
            if abi.boolean_at(await self.view(token, used), 0):
                return "the payment was used or cancelled"
            balance = abi.uint_at(await self.view(token, abi.call(_BALANCE_OF, abi.address(owner))), 0, 256)
        except Refused as odd:
            raise Unavailable(f"the node: {odd.message}") from None
        return f"the owner has {balance} of {amount}" if balance < amount else None

    async def view(self, contract: bytes, data: bytes) -> bytes:
        method, params = _viewing(contract, data)
        return octets_of(await self.ask(method, *params), "answer to eth_call")

    async def ask(self, method: str, *params: Any) -> Any:
        """Return the node's answer to one call. Raises Unavailable."""
        return await self._in_turn(lambda: self._node.call(method, *params))

    async def ask_together(self, *calls: Call) -> list[Any]:
        """Return the node's answers to several calls, batched if the node supports it.

        Raise `Unavailable` if one of the calls failed.
        """
        results = await self._in_turn(lambda: self._node.call_all(calls))
        return results if results is not None else [await self.ask(method, *params) for method, params in calls]

    async def _in_turn(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            with trio.fail_after(_NODE_TIMEOUT_S):
                async with self._turns:
                    return await ask()
        except trio.TooSlowError:
            raise Unavailable(f"the node {self._node.name} does not answer in time") from None
        except NodeFailed as failed:
            raise Unavailable(str(failed)) from None


def _viewing(contract: bytes, data: bytes) -> Call:
    return "eth_call", [{"to": hex_of(contract), "data": hex_of(data)}, "latest"]


def _posted(logs: Any) -> dict[str, Any] | None:
    if not isinstance(logs, list) or not all(isinstance(log, Mapping) for log in logs):
        raise Refused("eth_getLogs must be answered with a list of logs")
    if not logs:
        return None
    return event_values(_JOBS, "JobPosted", texts(logs[-1], "topics", 32), octets(logs[-1], "data"))


def _job_call(job_id: bytes) -> bytes:
    return call_data(_JOBS, "job", abi.bytes32(job_id))


def _differing(job: Job, posted: Mapping[str, Any]) -> Contradicted | None:
    order = order_of(posted)
    pairs = {name: (getattr(job, name), getattr(order, name)) for name in _TERMS}
    pairs |= {"owner": (job.owner, posted["owner"]), "task_cid": (job.task_cid, posted["taskCid"])}
    for name, (reported, found) in pairs.items():
        if reported != found:
            return Contradicted(f"{name} is {_shown(found)}, and not {_shown(reported)}")
    return None


def _shown(value: object) -> str:
    return hex_of(value) if isinstance(value, bytes) else str(value)
