"""What a line of a batch decides by itself, checked in a thread: recovering signatures costs most."""

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from common import strict_json
from common.domains import Domains
from common.quotes import Terms
from common.refusal import Refused
from coordinatord.service.line_reading import Line
from coordinatord.service.order_checks import (
    Paid,
    check_inline,
    check_order_signature,
    check_payment,
    quote_of,
    wrong_terms,
)
from coordinatord.service.orders import OrderBody, read_submission


@attrs.frozen(slots=True)
class Good:
    """A submission that the chain and the store may still refuse."""

    line: int
    paid: Paid


@attrs.frozen(slots=True)
class Skipped:
    line: int
    job_id: bytes | None
    code: str
    message: str


Checked: TypeAlias = Good | Skipped


@attrs.frozen(slots=True)
class LineChecks:
    """`registry` is the job registry's address; `terms` and `now` are those of the moment of processing."""

    domains: Domains
    registry: bytes
    endpoint: str
    terms: Terms
    now: float

    def check(self, lines: Sequence[Line]) -> list[Checked]:
        return [self._one(line) for line in lines]

    def _one(self, line: Line) -> Checked:
        if line.text is None:
            return Skipped(line.number, None, "invalid_line", "the line is longer than any submission")
        try:
            values = strict_json.parse(line.text)
        except Refused as wrong:
            return Skipped(line.number, None, "invalid_json", wrong.message)
        if not isinstance(values, dict):
            return Skipped(line.number, None, "invalid_json", "the line is not a JSON object")
        url = values.get("url")
        if url is not None and url != self.endpoint:
            return Skipped(line.number, None, "endpoint_mismatch", f"url is not the batch's endpoint {self.endpoint}")
        try:
            body = read_submission(values)
        except Refused as wrong:
            return Skipped(line.number, None, wrong.code or "invalid_line", wrong.message)
        if not isinstance(body, OrderBody) or body.auth_sig is None or body.amount is None:
            job_id = body.job_id if isinstance(body, OrderBody) else None
            message = "a line of a batch is a whole submission, with payment and container"
            return Skipped(line.number, job_id, "container_required", message)
        try:
            return self._submission(line.number, Paid(body, body.auth_sig, body.amount))
        except Refused as wrong:
            return Skipped(line.number, body.job_id, wrong.code or "invalid_line", wrong.message)

    def _submission(self, number: int, paid: Paid) -> Checked:
        body = paid.body
        wrong = wrong_terms(body, self.now)
        if wrong is not None:
            return Skipped(number, body.job_id, wrong.line_code, wrong.message)
        check_order_signature(self.domains, body)
        if paid.amount != quote_of(body, self.terms).amount:
            message = "amount is not cap + fee + gas_fee as they are now"
            return Skipped(number, body.job_id, "insufficient_payment", message)
        check_payment(self.domains, self.registry, paid)
        if body.container is not None:
            check_inline(body.container, body.c)
        return Good(number, paid)
