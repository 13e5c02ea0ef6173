"""Verdicts on several submissions at once, and how checks follow each other."""

import base64
import time
from collections.abc import Sequence

import attrs

from common import framing
from common.container import HEAD_BYTES
from common.wire.fields import read_object
from common.wire.limits import LONGEST_SLA, ORDER_LIFE
from coordinatord.orders import judgement
from coordinatord.orders.judgement import Fault, OrderBody, Paid, judge, order_checks, payment_checks, submission_of
from tests.fakes.submissions import Body, Submitter

_CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"


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


def test_two_submissions_are_one_by_terms_amount_and_container_whatever_their_signatures(submitter: Submitter) -> None:
    """By signature bytes, the same order signed anew would be posted beside itself; by less than all of the others, a
    changed order would be answered with the post of the former one."""
    paid = _paid(submitter.line())
    body = paid.body
    same = [
        attrs.evolve(paid, payment=b"\x01" * 65),
        attrs.evolve(paid, body=attrs.evolve(body, signature=b"\x01" * 65)),
        attrs.evolve(paid, body=attrs.evolve(body, auth_sig=b"\x01" * 65)),
    ]
    terms = ("model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at")
    others = [
        *(attrs.evolve(paid, body=attrs.evolve(body, **{term: getattr(body, term) + 1})) for term in terms),
        attrs.evolve(paid, body=attrs.evolve(body, job_id=b"\x01" * 32)),
        attrs.evolve(paid, body=attrs.evolve(body, c=b"\x01" * 32)),
        attrs.evolve(paid, amount=paid.amount + 1),
    ]
    assert {one.dedupe(_CID) for one in same} == {paid.dedupe(_CID)}
    digests = [paid.dedupe(_CID), paid.dedupe(_CID[:-1] + "a"), *(one.dedupe(_CID) for one in others)]
    assert len(set(digests)) == len(digests) == len(terms) + 5


def test_amount_is_the_quoted_one_to_the_unit(submitter: Submitter) -> None:
    quoted = _paid(submitter.line()).amount
    checks = payment_checks(submitter.domains, submitter.registry, submitter.terms)
    lines = [_paid(submitter.line(amount=quoted + off)) for off in (-1, 0, 1)]
    assert judge(lines, checks) == [judgement.WRONG_AMOUNT, None, judgement.WRONG_AMOUNT]


def test_order_may_expire_from_now_to_a_day_ahead_and_be_due_within_the_longest_window(submitter: Submitter) -> None:
    now = 1_800_000_000
    expiries = [now, now + 1, now + ORDER_LIFE, now + ORDER_LIFE + 1]
    lines = [submitter.line(expires_at=expires_at) for expires_at in expiries]
    lines += [submitter.line(expires_at=now + 1, sla_secs=sla) for sla in (LONGEST_SLA, LONGEST_SLA + 1)]
    checks = order_checks(submitter.domains, now)
    assert judge([_paid(line) for line in lines], checks) == [
        judgement.EXPIRED,
        None,
        None,
        judgement.EXPIRES_TOO_LATE,
        None,
        judgement.SLA_TOO_LONG,
    ]


def test_container_of_a_length_that_no_sealing_yields_is_not_the_committed_one(submitter: Submitter) -> None:
    line = submitter.line()
    sealed = base64.b64decode(line["container"])
    length = HEAD_BYTES + framing.HEADER_BYTES + framing.SEALED_FRAME_BYTES + 1  # the last frame too short for its tag
    longer = sealed.ljust(length, b"\0")
    [fault] = judge([_paid({**line, "container": base64.b64encode(longer).decode()})], [judgement.check_inline])
    assert fault is not None
    assert (fault.code, fault.param) == ("commitment_mismatch", "container")
