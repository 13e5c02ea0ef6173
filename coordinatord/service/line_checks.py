"""What a line of a batch decides by itself, checked in a thread: recovering signatures costs most."""

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from common.domains import Domains
from common.quotes import Terms
from common.refusal import Refused
from coordinatord.fields import parse_sent
from coordinatord.service.line_reading import Line
from coordinatord.service.order_checks import (
    Paid,
    amount_of,
    check_inline,
    check_order_signer,
    check_payer,
    signers_of,
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
        read = [self._read(line) for line in lines]
        whole = [one.paid for one in read if isinstance(one, Good)]
        signers = iter(signers_of(self.domains, self.registry, whole))
        return [self._judged(one, *next(signers)) if isinstance(one, Good) else one for one in read]

    def _read(self, line: Line) -> Checked:
        """Good: a whole submission whose terms are right, with signatures to be checked."""
        if line.text is None:
            return Skipped(line.number, None, "invalid_line", "the line is longer than any submission")
        try:
            values = parse_sent(line.text)
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
            wrong_term = wrong_terms(body, self.now)
        except Refused as wrong:
            return Skipped(line.number, body.job_id, wrong.code or "invalid_line", wrong.message)
        if wrong_term is not None:
            return Skipped(line.number, body.job_id, wrong_term.line_code, wrong_term.message)
        return Good(line.number, Paid(body, body.auth_sig, body.amount))

    def _judged(self, one: Good, signer: bytes | None, payer: bytes | None) -> Checked:
        paid, body = one.paid, one.paid.body
        try:
            check_order_signer(body, signer)
            if paid.amount != amount_of(body, self.terms):
                message = "amount is not cap + fee + gas_fee as they are now"
                return Skipped(one.line, body.job_id, "insufficient_payment", message)
            check_payer(body, payer)
            if body.container is not None:
                check_inline(body.container, body.c)
        except Refused as wrong:
            return Skipped(one.line, body.job_id, wrong.code or "invalid_line", wrong.message)
        return one
