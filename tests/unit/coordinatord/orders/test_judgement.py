"""Verdicts on several submissions at once, and how checks follow each other."""

import time
from collections.abc import Sequence

import attrs

from common.wire.fields import read_object
from coordinatord.orders import judgement
from coordinatord.orders.judgement import Fault, OrderBody, Paid, judge, order_checks, payment_checks, submission_of
from tests.fakes.submissions import Body, Submitter


def _paid(line: Body) -> Paid:
    paid = submission_of(read_object(OrderBody, line))
    assert isinstance(paid, Paid)
    return paid


def test_each_submission_has_the_first_fault_of_its_own(submitter: Submitter) -> None:
    line = submitter.line()
    bodies = [
        line,
        line | {"job_id": "0x" + "00" * 32},
        submitter.line(expires_at=int(time.time()) - 1),
        line | {"signature": line["auth_sig"]},
        submitter.line(amount=1),
        line | {"auth_sig": line["signature"]},
    ]
    checks = [
        *order_checks(submitter.domains, time.time()),
        *payment_checks(submitter.domains, submitter.registry, submitter.terms),
    ]
    assert judge([_paid(body) for body in bodies], checks) == [
        None,
        judgement.WRONG_JOB_ID,
        judgement.EXPIRED,
        judgement.WRONG_SIGNER,
        judgement.WRONG_AMOUNT,
        judgement.WRONG_PAYER,
    ]


def test_check_sees_only_those_that_passed_the_ones_before_it() -> None:
    seen: list[list[int]] = []
    fault = Fault("must be even", "n", None, "odd")

    def even(numbers: Sequence[int]) -> list[Fault | None]:
        seen.append(list(numbers))
        return [fault if number % 2 else None for number in numbers]

    def nothing(numbers: Sequence[int]) -> list[Fault | None]:
        seen.append(list(numbers))
        return [None] * len(numbers)

    assert judge([1, 2, 3, 4], [even, nothing]) == [fault, None, fault, None]
    assert seen == [[1, 2, 3, 4], [2, 4]]


def test_order_without_payment_is_judged_by_its_own_checks(submitter: Submitter) -> None:
    order = submission_of(attrs.evolve(_paid(submitter.line()).body, auth_sig=None, amount=None, container=None))
    assert not isinstance(order, Paid)
    assert judge([order], order_checks(submitter.domains, time.time())) == [None]
