"""Checks of batch lines one by one, without reading the chain or the database. POST /v1/jobs runs the same checks."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import attrs

from common.api.fields import parse_request_json, read_object_or_faults
from common.domains import Domains
from common.quotes import FeeTerms
from common.refusal import Refused
from coordinatord.api.batches.line_reader import MAX_LINE_BYTES, InputLine
from coordinatord.api.batches.lines_sql import LineRecord
from coordinatord.api.files.foreign_lines import foreign_line_error
from coordinatord.api.orders.bodies import OrderBody, PaidOrder, optional_field_faults, to_paid_order
from coordinatord.api.orders.faults import Fault
from coordinatord.api.orders.validation import container_faults, order_faults, payment_faults

INCOMPLETE_LINE_MESSAGE: Final = (
    "a line must be a whole submission: the order's nine terms, owner, job_id, signature, auth_sig, amount and"
    " container or container_cid"
)


@attrs.frozen(slots=True)
class PaidLine:
    """Line with a complete submission."""

    line: int
    paid_order: PaidOrder

    @property
    def owner(self) -> bytes:
        return self.paid_order.order.owner

    def failure_record(self, fault: Fault) -> LineRecord:
        return LineRecord(self.line, self.paid_order.order.job_id, None, fault.line_code, fault.message)


CheckedLine: TypeAlias = PaidLine | LineRecord
"""Line that may still be posted, or the record of a failed line."""


@attrs.frozen(slots=True)
class LineChecks:
    """Checks each line on its own. Run `check_lines` in a thread, because recovering signatures takes long.

    `registry` is the address of the job registry. `now` is the current Unix time in seconds.
    """

    domains: Domains
    registry: bytes
    endpoint: str
    fee_terms: FeeTerms
    now: float

    def check_lines(self, lines: Sequence[InputLine]) -> list[CheckedLine]:
        return [self._check_line(line) for line in lines]

    def _check_line(self, line: InputLine) -> CheckedLine:
        read = self._read_line(line)
        if isinstance(read, LineRecord):
            return read
        paid = read.paid_order
        faults = chain(
            order_faults(paid.order, self.domains, self.now),
            payment_faults(paid, self.domains, self.registry, self.fee_terms),
            container_faults(paid.order),
        )
        fault = next(faults, None)
        return read if fault is None else read.failure_record(fault)

    def _read_line(self, line: InputLine) -> CheckedLine:
        if line.text is None:
            return _failure_record(line, "invalid_line", f"the line is longer than {MAX_LINE_BYTES} bytes")
        try:
            values = parse_request_json(line.text)
        except Refused as error:
            return _failure_record(line, "invalid_json", error.message)
        if not isinstance(values, dict):
            return _failure_record(line, "invalid_json", "the line is not a JSON object")
        url = values.get("url")
        if url is not None and url != self.endpoint:
            return LineRecord(
                line.number, None, None, "endpoint_mismatch", f"url is not the batch's endpoint {self.endpoint}"
            )
        message = foreign_line_error(
            has_body=isinstance(values.get("body"), dict),
            has_signature=values.get("signature") is not None,
            has_custom_id=values.get("custom_id") is not None,
        )
        if message is not None:
            return _failure_record(line, "invalid_line", message)
        try:
            order = _read_order(values)
        except Refused as error:
            return _failure_record(line, error.code or "invalid_line", error.message)
        paid = to_paid_order(order)
        if paid is None:
            message = "; ".join(
                [INCOMPLETE_LINE_MESSAGE, *(fault.message for fault in _missing_payment_faults(values))]
            )
            return _failure_record(line, "container_required", message, order.job_id)
        return PaidLine(line.number, paid)


def _read_order(values: Mapping[str, object]) -> OrderBody:
    """Read the order of a line. The error names all missing fields.

    A line must be an order. POST /v1/jobs also accepts a body without rates, and returns the market's asks for it.
    """
    read = read_object_or_faults(OrderBody, values)
    if isinstance(read, OrderBody):
        for fault in optional_field_faults(read):
            raise fault
        return read
    refused = Refused.combine([*read, *_missing_payment_faults(values)])
    is_order = values.get("signature") is not None and (values.get("rate_in"), values.get("rate_out")) != (None, None)
    raise refused if is_order else Refused(f"{INCOMPLETE_LINE_MESSAGE}; {refused.message}", refused.param, refused.code)


def _missing_payment_faults(values: Mapping[str, object]) -> list[Refused]:
    """Return a fault for each missing field of the payment, and for a missing container."""
    missing = [name for name in ("auth_sig", "amount") if values.get(name) is None]
    if values.get("container") is None and values.get("container_cid") is None:
        missing.append("container or container_cid")
    return [Refused(f"{name} is required", name) for name in missing]


def _failure_record(line: InputLine, code: str, message: str, job_id: bytes | None = None) -> LineRecord:
    return LineRecord(line.number, job_id, None, code, message)
