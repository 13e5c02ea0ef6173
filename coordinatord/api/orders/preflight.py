"""POST /v1/jobs/check: every check that an order fails, told at once. Nothing is stored, relayed or counted.

The checks are those of `validation`, in the order of a submission. Where a submission ends with the first that fails,
here the others follow. A route of its own, and no parameter of POST /v1/jobs: a coordinator that did not know the
parameter would post the order.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import anyio
import attrs
from anyio import to_thread

from common.api import errors
from common.api.fields import try_object
from common.api.market import FailedCheck
from common.artifacts import decode_error
from common.domains import Domains
from common.quotes import FeeTerms
from common.refusal import Refused
from coordinatord.api.book.reads import MarketWindows
from coordinatord.api.files.files import Uploads
from coordinatord.api.orders.submission import ANY_CID, Matchmaker, QuotedOrder
from coordinatord.api.orders.validation import (
    SLA_NOT_ALLOWED,
    Fault,
    OrderBody,
    Paid,
    Submission,
    ask_chain,
    check_inline,
    judge,
    payment_checks,
    shape_faults,
    signature_check,
    sla_not_allowed,
    submission_of,
    terms_faults,
    upload_check,
)
from coordinatord.base.clock import Clock
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import JobRegistry
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.role import require_role
from coordinatord.chain.relayer.solvency import INSUFFICIENT_BALANCE, Promises, insufficient

_AT_ONCE: Final = 4
_MOST_WAITING: Final = 64

Failures: TypeAlias = list[FailedCheck]


@attrs.frozen(slots=True)
class CheckedOrder:
    """`quoted` is None where the order has no price, or could not be read."""

    failures: tuple[FailedCheck, ...]
    paid: bool
    quoted: QuotedOrder | None


@attrs.frozen(slots=True)
class Preflight:
    """Checks of orders without posting them, a few at a time: signatures and containers cost time, and the chain is
    asked as for a submission."""

    domains: Domains
    registry: JobRegistry
    promises: Promises
    budgets: GasBudgets
    relayer: bytes
    market: Matchmaker
    uploads: Uploads
    windows: MarketWindows
    clock: Clock
    _turns: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(_AT_ONCE), init=False)

    async def check(self, values: Mapping[str, object]) -> CheckedOrder:
        """Raises Retryable when what decides cannot be read, or too many wait to be checked."""
        body = try_object(OrderBody, values)
        if isinstance(body, list):
            return CheckedOrder(tuple(_of_refusal(fault) for fault in body), values.get("auth_sig") is not None, None)
        if self._turns.statistics().tasks_waiting >= _MOST_WAITING:
            raise Retryable("busy", "too many orders wait to be checked", retry_after=1)
        async with self._turns:
            return await self._check(body)

    async def _check(self, body: OrderBody) -> CheckedOrder:
        order, terms = submission_of(body), await self.registry.fees()
        failures = [_of_refusal(fault) for fault in shape_faults(body)]
        own = list(terms_faults(body, self.clock()))
        own += _failing(judge([order], [signature_check(self.domains)]))
        if isinstance(order, Paid):
            for each in payment_checks(self.domains, self.registry.address, terms):
                own += _failing(judge([order], [each]))
            own += await self._container_faults(order)
        failures += map(_of_fault, own)
        failures += await self._chain_faults(order, terms, sound=not failures)
        return CheckedOrder(tuple(failures), body.auth_sig is not None, await self._quoted(body, terms))

    async def _container_faults(self, paid: Paid) -> list[Fault]:
        body = paid.body
        faults = _failing(await to_thread.run_sync(judge, [paid], [check_inline]))
        if body.container_cid is None:
            return faults
        upload = await self.uploads.find_input(body.owner, body.container_cid)
        found = {(body.owner, body.container_cid): upload} if upload is not None else {}
        return faults + _failing(judge([paid], [upload_check(found)]))

    async def _chain_faults(self, order: Submission, terms: FeeTerms, *, sound: bool) -> Failures:
        """Checks that the chain decides. `sound`: nothing failed so far, so that a refused post is refused for more."""
        body, token = order.body, self.promises.token
        posted = await self.registry.job(body.job_id)
        paid = order if isinstance(order, Paid) else None
        trial = (
            self.registry.would_accept(paid.calldata(ANY_CID), self.relayer)
            if paid is not None
            else self.registry.job_view(body.job_id)  # nothing to try yet
        )
        facts = await ask_chain(self.registry, token, [order], trial=trial)
        failures = [_of_fault(await self._worded(fault)) for fault in facts.faults(body)]
        if posted is not None:
            failures.append(_of_contract("DuplicateJob", "this owner has posted this order, or another with its `c`"))
        elif paid is not None and facts.refusal is not None and sound and not failures:
            name = decode_error(facts.refusal.data)
            require_role(name)
            said = f"the chain refuses the post: {name or '0x' + facts.refusal.data.hex()}"
            if name == INSUFFICIENT_BALANCE:
                said = insufficient(body.owner, paid.amount, facts.balances.get(body.owner)).message
            failures.append(_of_contract(name, said))
        if posted is None and not any(each.code in ("InsufficientBalance", "cap_overflow") for each in failures):
            failures += await self._solvency(order, terms, facts.balances.get(body.owner))
        return failures

    async def _worded(self, fault: Fault) -> Fault:
        return sla_not_allowed(await self.windows.read()) if fault is SLA_NOT_ALLOWED else fault

    async def _solvency(self, order: Submission, terms: FeeTerms, balance: int | None) -> Failures:
        """Room in the owner's gas budget, and funds for the job beside its open ones."""
        body = order.body
        try:
            amount = order.amount if isinstance(order, Paid) else body.quote(terms).amount
        except Refused:
            return []
        try:
            admitted = await self.budgets.admit(RelayKind.POST, body.owner, body.job_id)
        except Retryable as over:
            if over.kind != "busy":
                raise
            return [FailedCheck(over.message, None, over.kind, errors.UNCODED[over.kind].remedy)]
        promise = await self.promises.promise(admitted.standing, body.owner, amount, balance)
        if promise is None and not await self.budgets.is_under_way(body.job_id):
            return [_of_contract(INSUFFICIENT_BALANCE, insufficient(body.owner, amount, balance).message)]
        return []

    async def _quoted(self, body: OrderBody, terms: FeeTerms) -> QuotedOrder | None:
        try:
            quote = body.quote(terms)
        except Refused:
            return None
        return QuotedOrder(body, quote, terms.fee_bps, await self.market.matching(body), changed=False)


def _failing(verdicts: list[Fault | None]) -> list[Fault]:
    return [fault for fault in verdicts if fault is not None]


def _of_fault(fault: Fault) -> FailedCheck:
    if fault.param == SLA_NOT_ALLOWED.param and fault.line_code == SLA_NOT_ALLOWED.line_code:
        return FailedCheck(fault.message, fault.param, fault.code, errors.named(409, "SlaNotAllowed").remedy)
    return FailedCheck(fault.message, fault.param, fault.code, fault.remedy)


def _of_refusal(refused: Refused) -> FailedCheck:
    known = errors.CODED.get(refused.code) if refused.code is not None else None
    return FailedCheck(refused.message, refused.param, refused.code, (known or errors.UNCODED[400]).remedy)


def _of_contract(name: str | None, message: str) -> FailedCheck:
    known = {each: error for error in errors.CONTRACT_ERRORS for each in error.names}
    remedy = known[name].remedy if name in known else errors.UNCODED[409].remedy
    return FailedCheck(message, None, name, remedy)
