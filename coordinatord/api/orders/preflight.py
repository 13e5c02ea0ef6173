"""POST /v1/jobs/check: reports every check that an order fails. Nothing is stored, relayed or counted.

The check is a separate route and not a parameter of POST /v1/jobs, because an older coordinator would ignore the
parameter and post the order.
"""

from collections.abc import Mapping
from typing import Final

import anyio
import attrs

from common.api import errors
from common.api.fields import read_object_or_faults
from common.api.market import FailedCheck
from common.refusal import Refused
from coordinatord.api.orders.bodies import OrderBody, optional_field_faults
from coordinatord.api.orders.faults import SLA_NOT_ALLOWED, Fault
from coordinatord.api.orders.submission import QuotedOrder, SubmissionService
from coordinatord.api.orders.validation import DUPLICATE_JOB, Failure, Findings
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal

MAX_CONCURRENT_CHECKS: Final = 4
MAX_WAITING_CHECKS: Final = 64


@attrs.frozen(slots=True)
class Preflight:
    """Checks orders without posting them, a few at a time, because the checks are slow."""

    submissions: SubmissionService
    _check_limiter: anyio.CapacityLimiter = attrs.field(
        factory=lambda: anyio.CapacityLimiter(MAX_CONCURRENT_CHECKS), init=False
    )

    async def check(self, values: Mapping[str, object]) -> tuple[list[FailedCheck], QuotedOrder | None]:
        """Return the failed checks, and the quote of an order that can be read and has a price. Raise Retryable when a
        check cannot be decided now, or when too many orders wait to be checked."""
        body = read_object_or_faults(OrderBody, values)
        if isinstance(body, list):
            return [_failed_body_check(fault) for fault in body], None
        if self._check_limiter.statistics().tasks_waiting >= MAX_WAITING_CHECKS:
            raise Retryable("busy", "too many orders wait to be checked; try again later", retry_after=1)
        async with self._check_limiter:
            return await self._check(body)

    async def _check(self, body: OrderBody) -> tuple[list[FailedCheck], QuotedOrder | None]:
        checks = self.submissions.order_checks
        findings = Findings(await checks.registry.read_fees())
        failed = [_failed_body_check(fault) for fault in optional_field_faults(body)]
        failed += map(_failed_check, checks.order_faults(body))
        async for failure in checks.find_failures(body, findings, report_all=True, is_valid=not failed):
            failed.append(_failed_check(failure))
        try:
            return failed, await self.submissions.quote_order(body, findings.fee_terms)
        except Refused:  # the price is too large; `failed` reports that already
            return failed, None


def _failed_check(failure: Failure) -> FailedCheck:
    if isinstance(failure, Fault):
        remedy = failure.remedy
        if (failure.param, failure.line_code) == (SLA_NOT_ALLOWED.param, SLA_NOT_ALLOWED.line_code):
            remedy = errors.declared_error(409, "SlaNotAllowed").remedy
        return FailedCheck(failure.message, failure.param, failure.code, remedy)
    if isinstance(failure, Retryable):
        return FailedCheck(failure.message, None, failure.kind, errors.UNCODED_ERRORS[failure.kind].remedy)
    if isinstance(failure, PredictedRefusal):
        message = failure.message
    elif failure.name == DUPLICATE_JOB:
        message = "this owner has already posted this order, or another order with the same `c`"
    else:
        message = f"the chain refuses the post: {failure.name or '0x' + failure.raw.hex()}"
    known = {name: error for error in errors.CONTRACT_ERRORS for name in error.names}
    remedy = known[failure.name].remedy if failure.name in known else errors.UNCODED_ERRORS[409].remedy
    return FailedCheck(message, None, failure.name, remedy)


def _failed_body_check(refused: Refused) -> FailedCheck:
    known = errors.ERRORS_BY_CODE.get(refused.code) if refused.code is not None else None
    return FailedCheck(refused.message, refused.param, refused.code, (known or errors.UNCODED_ERRORS[400]).remedy)
