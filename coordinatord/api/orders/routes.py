"""Routes of jobs as clients see them: quote, post, read, cancel."""

from collections.abc import Mapping
from typing import assert_never

import attrs

from common.address_book import AddressBook
from common.api import jobs, limits, market
from common.api.fields import BYTES32, object_example, object_schema
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from common.api.shapes import Digits
from common.scalars import hex_of
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.events.progress_hub import ProgressHub
from coordinatord.api.events.routes import PREFER_HEADERS, RESPOND_ASYNC, STORED_REPLY, stored_response
from coordinatord.api.orders import answers
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, read_submission
from coordinatord.api.orders.cancel import AlreadyEnded, CancelBody, CancelOutcome, CancelService
from coordinatord.api.orders.preflight import Preflight
from coordinatord.api.orders.submission import (
    ProbeAnswer,
    QuotedOrder,
    SubmissionService,
    SubmitOutcome,
    SubmittedOrder,
)
from coordinatord.base.outcomes import NoSuchObject, PredictedRefusal
from coordinatord.chain.relayer.outbox_sql import QueuedRelay
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, RelayMined
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    CHAIN_REPLIES,
    INDEX_REPLIES,
    RELAY_REPLIES,
    STORE_REPLIES,
    Body,
    Parameter,
    Reply,
    Request,
    Route,
    chain_refusal_replies,
    malformed_replies,
)


def _examples() -> dict[str, object]:
    return {
        "probe": object_example(MarketProbe, "designated"),
        "quote": object_example(OrderBody, "auth_sig", "amount", "container", "container_cid"),
        "submission": object_example(OrderBody, "container_cid"),
    }


def _examples_for_check() -> dict[str, object]:
    return {"order": object_example(OrderBody, "auth_sig", "amount", "container", "container_cid")}


def _read_unchecked(values: Mapping[str, object]) -> Mapping[str, object]:
    """Pass the body on unchecked, because its faults are part of the response."""
    return values


_SETTLED_EXAMPLE = {"svc": {"reclaimable_at": NO_EXAMPLE, "reclaimable_block": NO_EXAMPLE}}
_REFUSALS = (
    "cap_overflow",
    "invalid_order_signature",
    "container_without_payment",
    "container_required",
    "container_ambiguous",
    "invalid_payment_signature",
    "payer_has_code",
    "unknown_container",
    "too_short",
    "bad_version",
    "commitment_mismatch",
)


def submit_response(outcome: SubmitOutcome, address_book: AddressBook, poll: str) -> Response:
    match outcome:
        case SubmittedOrder():
            body = jobs.PostedShape(hex_of(outcome.job_id), outcome.task_cid, hex_of(outcome.tx_hash))
            return responses.ok(body, status=201)
        case ProbeAnswer():
            listed = market.Candidates[Digits](tuple(answers.candidate_shape(row) for row in outcome.candidates))
            return responses.not_retryable(402, listed)
        case QuotedOrder():
            # 402 requests payment. 409 means that the signed amount is outdated.
            quote = answers.quote_body_shape(address_book, outcome)
            return responses.not_retryable(409 if outcome.amount_changed else 402, quote)
        case RefusedByChain() | PredictedRefusal() | RelayBusy() | NoReceipt():
            return relay_responses.relay_failure_response(outcome, poll)
        case _:
            assert_never(outcome)


def cancel_response(job_id: bytes, outcome: CancelOutcome) -> Response:
    if isinstance(outcome, RelayMined | AlreadyEnded):
        return responses.ok(jobs.Cancelled(hex_of(job_id), hex_of(outcome.tx_hash)))
    return relay_responses.relay_failure_response(outcome, f"GET /v1/jobs/{hex_of(job_id)}")


@attrs.frozen(slots=True)
class OrderRoutes:
    address_book: AddressBook
    submissions: SubmissionService
    preflight: Preflight
    cancels: CancelService
    reads: IndexReads
    progress: ProgressHub

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/jobs",
                id="postJob",
                tag="Jobs",
                about="List the live asks, get a quote, or post a job",
                details=(
                    "The body selects one of three modes. `probe`: without `rate_in` and `rate_out`, the answer is 402"
                    " with every live ask; the list is empty for an unknown model, window or provider. `quote`: for a"
                    " signed order, the answer is 402 with the price and the payment to sign; model, window and payer"
                    " are not checked yet. `submission`: with `auth_sig`, `amount` and a container, the job is posted,"
                    " and the answer is 201. The client computes the job's id. If the answer is lost or is a 504, read"
                    " GET /v1/jobs/{id}, then send the same request again."
                ),
                handler=self.post_job,
                headers=PREFER_HEADERS,
                body=Body.any_of([MarketProbe, OrderBody], read_submission, _examples, limits.MAX_ORDER_BODY_BYTES),
                replies=(
                    Reply(201, shape=jobs.PostedShape, about="The job is posted"),
                    STORED_REPLY,
                    Reply(402, shape=market.Candidates[Digits], about="For a probe: the live asks, ranked"),
                    Reply(
                        402, shape=market.QuoteBodyShape, about="For an order without payment: the quote. Not an error"
                    ),
                    *malformed_replies(*_REFUSALS),
                    Reply(
                        409,
                        shape=market.QuoteBodyShape,
                        about="`amount` is outdated: a new quote. Sign a new payment and send the request again",
                    ),
                    *chain_refusal_replies("post"),
                    *RELAY_REPLIES,
                    Reply(503, "payer_code_read"),
                    Reply(503, "registry_floor_read"),
                    *STORE_REPLIES,
                ),
            ),
            Route(
                method="POST",
                path="/v1/jobs/check",
                id="checkJob",
                tag="Jobs",
                about="Report every check that an order fails",
                details=(
                    "Takes the body of POST /v1/jobs, as a quote or as a submission, and runs the same checks. POST"
                    " /v1/jobs reports the first failed check, and this route reports all of them, and the live"
                    " candidates that would take the order. Nothing is posted, stored or counted against budgets."
                    " Without `auth_sig`, the payment and the container are not checked, so the client need not sign a"
                    " payment. If a field cannot be read, the other checks do not run."
                ),
                handler=self.check_order,
                body=Body(
                    limits.MAX_ORDER_BODY_BYTES, _read_unchecked, lambda: object_schema(OrderBody), _examples_for_check
                ),
                replies=(
                    Reply(200, shape=market.CheckedShape, about="The failed checks, if any"),
                    *malformed_replies(),
                    *CHAIN_REPLIES,
                    Reply(429, "busy"),
                    Reply(503, "rpc_internal"),
                    Reply(503, "payer_code_read"),
                    Reply(503, "registry_floor_read"),
                    Reply(503, "job_read"),
                ),
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}",
                id="getJob",
                tag="Jobs",
                about="Read one job, as its client sees it",
                details=(
                    "Poll this route until `status` is `completed`, `failed` or `cancelled`. Start with a pause of a"
                    " quarter of a second, and increase the pause to five seconds."
                ),
                handler=self.read_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=MEMBER_TEXTS["job_id"].example)},
                replies=(
                    Reply(200, shape=jobs.ClientJob, about="The job", example=_SETTLED_EXAMPLE),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
            Route(
                method="POST",
                path="/v1/jobs/{id}/cancel",
                id="cancelJob",
                tag="Jobs",
                about="Cancel an open job",
                details=(
                    "For a job that has already ended, the answer is also 200, and nothing is done. `status` of GET"
                    " /v1/jobs/{id} shows how the job ended. The owner must sign the cancel at most 600 s before it is"
                    " sent, even for an ended job."
                ),
                handler=self.cancel_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=MEMBER_TEXTS["job_id"].example)},
                body=Body.of(CancelBody, limits.MAX_CANCEL_BODY_BYTES),
                replies=(
                    Reply(200, shape=jobs.Cancelled, about="The job is cancelled, or it had already ended"),
                    *malformed_replies(),
                    *chain_refusal_replies("cancel"),
                    *RELAY_REPLIES,
                    Reply(503, "job_read"),
                ),
            ),
        ]

    async def post_job(self, request: Request) -> Response:
        body: MarketProbe | OrderBody = request.body
        poll = f"GET /v1/jobs/{hex_of(body.job_id)}" if isinstance(body, OrderBody) else ""
        outcome = await self.submissions.submit(body, wait=not request.prefers(RESPOND_ASYNC))
        if isinstance(outcome, QueuedRelay):
            return await stored_response(self.progress, outcome.relay.subject)
        return submit_response(outcome, self.address_book, poll)

    async def check_order(self, request: Request) -> Response:
        failures, quoted = await self.preflight.check(request.body)
        paid = request.body.get("auth_sig") is not None
        return responses.ok(answers.check_result_shape(self.address_book, failures, quoted, paid=paid))

    async def read_job(self, request: Request) -> Response:
        found = await self.reads.jobs.get(request.path["id"])
        if (row := found.value) is None:
            return responses.not_found(NoSuchObject("job"))
        at, block = row.reclaimable_at, None
        if at is not None:
            block = await self.reads.block_pace.estimate_block_after(found.snapshot, at)
        return responses.ok(answers.client_job_shape(row, found.snapshot.block_number, block), snapshot=found.snapshot)

    async def cancel_job(self, request: Request) -> Response:
        job_id = request.path["id"]
        return cancel_response(job_id, await self.cancels.cancel(job_id, request.body))
