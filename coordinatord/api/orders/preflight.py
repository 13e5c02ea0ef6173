"""POST /v1/jobs/check: reports every check that an order fails. Nothing is stored, relayed or counted.

It is a separate route and not a parameter of POST /v1/jobs, because a coordinator that does not know the parameter
would post the order.
"""

from collections.abc import Mapping
from typing import Final

import anyio
import attrs

from common.api import errors
from common.api.fields import try_object
from common.api.market import FailedCheck
from common.refusal import Refused
from coordinatord.api.orders.bodies import OrderBody, shape_faults
from coordinatord.api.orders.faults import SLA_NOT_ALLOWED, Fault
from coordinatord.api.orders.submission import QuotedOrder, Submissions
from coordinatord.api.orders.validation import DUPLICATE_JOB, Failure, Findings
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import WouldRefuse

MAX_CHECKING: Final = 4
MAX_WAITING: Final = 64


@attrs.frozen(slots=True)
class CheckedOrder:
    """`quoted` is None if the order has no price or could not be read."""

    failures: tuple[FailedCheck, ...]
    paid: bool
    quoted: QuotedOrder | None


@attrs.frozen(slots=True)
class Preflight:
    """Checks of orders without posting them, a few at a time: signatures, containers and the node cost time."""

    submissions: Submissions
    _turns: anyio.CapacityLimiter = attrs.field(factory=lambda: anyio.CapacityLimiter(MAX_CHECKING), init=False)

    async def check(self, values: Mapping[str, object]) -> CheckedOrder:
        """Raise Retryable when a check cannot be decided now, or when too many orders wait to be checked."""
        body = try_object(OrderBody, values)
        if isinstance(body, list):
            return CheckedOrder(tuple(_of_refusal(fault) for fault in body), values.get("auth_sig") is not None, None)
        if self._turns.statistics().tasks_waiting >= MAX_WAITING:
            raise Retryable("busy", "too many orders wait to be checked", retry_after=1)
        async with self._turns:
            return await self._check(body)

    async def _check(self, body: OrderBody) -> CheckedOrder:
        checks = self.submissions.checks
        found = Findings(await checks.registry.fees())
        failed = [_of_refusal(fault) for fault in shape_faults(body)]
        failed += map(_of_failure, checks.order_faults(body))
        async for failure in checks.failures(body, found, every=True, is_sound=not failed):
            failed.append(_of_failure(failure))
        try:
            quoted = await self.submissions.quoted(body, found.terms)
        except Refused:  # the price is too large, which is among the failures
            quoted = None
        return CheckedOrder(tuple(failed), body.auth_sig is not None, quoted)


def _of_failure(failure: Failure) -> FailedCheck:
    if isinstance(failure, Fault):
        remedy = failure.remedy
        if (failure.param, failure.line_code) == (SLA_NOT_ALLOWED.param, SLA_NOT_ALLOWED.line_code):
            remedy = errors.named(409, "SlaNotAllowed").remedy
        return FailedCheck(failure.message, failure.param, failure.code, remedy)
    if isinstance(failure, Retryable):
        return FailedCheck(failure.message, None, failure.kind, errors.UNCODED[failure.kind].remedy)
    if isinstance(failure, WouldRefuse):
        message = failure.message
    elif failure.name == DUPLICATE_JOB:
        message = "this owner has posted this order, or another with its `c`"
    else:
        message = f"the chain refuses the post: {failure.name or '0x' + failure.raw.hex()}"
    known = {name: error for error in errors.CONTRACT_ERRORS for name in error.names}
    remedy = known[failure.name].remedy if failure.name in known else errors.UNCODED[409].remedy
    return FailedCheck(message, None, failure.name, remedy)


def _of_refusal(refused: Refused) -> FailedCheck:
    known = errors.CODED.get(refused.code) if refused.code is not None else None
    return FailedCheck(refused.message, refused.param, refused.code, (known or errors.UNCODED[400]).remedy)
