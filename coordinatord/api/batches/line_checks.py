"""Checks of single batch lines. They are the same as the checks of POST /v1/jobs."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import attrs

from common.api.fields import parse_sent, try_object
from common.domains import Domains
from common.quotes import FeeTerms
from common.refusal import Refused
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.files.foreign_lines import foreign
from coordinatord.api.orders.bodies import OrderBody, Paid, paid_of, shape_faults
from coordinatord.api.orders.faults import Fault
from coordinatord.api.orders.validation import container_faults, order_faults, payment_faults

WHOLE: Final = (
    "a line must be a whole submission: the order's nine terms, owner, job_id, signature, auth_sig, amount and"
    " container or container_cid"
)


@attrs.frozen(slots=True)
class PaidLine:
    """Line with a whole submission."""

    line: int
    paid: Paid

    @property
    def owner(self) -> bytes:
        return self.paid.body.owner

    def failed(self, fault: Fault) -> LineRecord:
        return LineRecord(self.line, self.paid.body.job_id, None, fault.line_code, fault.message)


CheckedLine: TypeAlias = PaidLine | LineRecord
"""Line that may still be posted, or the record of a failed line."""


@attrs.frozen(slots=True)
class LineChecks:
    """Checks each line alone, in a thread, because recovering signatures takes long. `registry` is the job registry's
    address. `terms` and `now` are the terms and the time of processing."""

    domains: Domains
    registry: bytes
    endpoint: str
    terms: FeeTerms
    now: float

    def check(self, lines: Sequence[InputLine]) -> list[CheckedLine]:
        return [self._checked(line) for line in lines]

    def _checked(self, line: InputLine) -> CheckedLine:
        read = self._read(line)
        if isinstance(read, LineRecord):
            return read
        paid = read.paid
        failed = chain(
            order_faults(paid.body, self.domains, self.now),
            payment_faults(paid, self.domains, self.registry, self.terms),
            container_faults(paid.body),
        )
        fault = next(failed, None)
        return read if fault is None else read.failed(fault)

    def _read(self, line: InputLine) -> CheckedLine:
        if line.text is None:
            return _failed(line, "invalid_line", "the line is longer than any submission")
        try:
            values = parse_sent(line.text)
        except Refused as wrong:
            return _failed(line, "invalid_json", wrong.message)
        if not isinstance(values, dict):
            return _failed(line, "invalid_json", "the line is not a JSON object")
        url = values.get("url")
        if url is not None and url != self.endpoint:
            return LineRecord(
                line.number, None, None, "endpoint_mismatch", f"url is not the batch's endpoint {self.endpoint}"
            )
        message = foreign(
            body=isinstance(values.get("body"), dict),
            signed=values.get("signature") is not None,
            named=values.get("custom_id") is not None,
        )
        if message is not None:
            return _failed(line, "invalid_line", message)
        try:
            order = _read_order(values)
        except Refused as wrong:
            return _failed(line, wrong.code or "invalid_line", wrong.message)
        paid = paid_of(order)
        if paid is None:
            message = "; ".join([WHOLE, *(fault.message for fault in _unpaid(values))])
            return _failed(line, "container_required", message, order.job_id)
        return PaidLine(line.number, paid)


def _read_order(values: Mapping[str, object]) -> OrderBody:
    """Read the order of a line. A line without rates is an error, not a market probe. The error names all fields that
    the line lacks."""
    read = try_object(OrderBody, values)
    if isinstance(read, OrderBody):
        for fault in shape_faults(read):
            raise fault
        return read
    refused = Refused.together([*read, *_unpaid(values)])
    is_order = values.get("signature") is not None and (values.get("rate_in"), values.get("rate_out")) != (None, None)
    raise refused if is_order else Refused(f"{WHOLE}; {refused.message}", refused.param, refused.code)


def _unpaid(values: Mapping[str, object]) -> list[Refused]:
    """Return the fault of a line that lacks a payment or a container."""
    lacking = [name for name in ("auth_sig", "amount") if values.get(name) is None]
    if values.get("container") is None and values.get("container_cid") is None:
        lacking.append("container or container_cid")
    return [Refused(f"{name} is required", name) for name in lacking]


def _failed(line: InputLine, code: str, message: str, job_id: bytes | None = None) -> LineRecord:
    return LineRecord(line.number, job_id, None, code, message)
