"""Routes of jobs as clients see them: quote, post, read, cancel."""

from collections.abc import Mapping
from typing import assert_never

import attrs

from common.address_book import AddressBook
from common.api import jobs, limits, market
from common.api.fields import BYTES32, object_example, object_schema
from common.api.shapes import Digits
from common.api.words import NOTHING, WORDS
from common.scalars import hex_of
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.events.routes import PREFER, RESPOND_ASYNC, STORED, BeforeBlocks
from coordinatord.api.orders import answers
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, read_submission
from coordinatord.api.orders.cancel import CancelBody, CancelOutcome, Cancels, HasEnded
from coordinatord.api.orders.preflight import Preflight
from coordinatord.api.orders.submission import Probed, QuotedOrder, Submissions, SubmitOutcome, SubmittedOrder
from coordinatord.base.outcomes import NoSuchObject, WouldRefuse
from coordinatord.chain.relayer.outbox_sql import Queued
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, RelayMined
from coordinatord.http import relay_responses, responses
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    CHAIN,
    INDEX,
    RELAY,
    STORE,
    Body,
    Parameter,
    Reply,
    Request,
    Route,
    malformed,
    refused_by_chain,
)


def _examples() -> dict[str, object]:
    return {
        "probe": object_example(MarketProbe, "designated"),
        "quote": object_example(OrderBody, "auth_sig", "amount", "container", "container_cid"),
        "submission": object_example(OrderBody, "container_cid"),
    }


def _check_examples() -> dict[str, object]:
    return {"order": object_example(OrderBody, "auth_sig", "amount", "container", "container_cid")}


def _as_it_is(values: Mapping[str, object]) -> Mapping[str, object]:
    """Pass the body on unchecked, because its faults are part of the response."""
    return values


_SETTLED = {"svc": {"reclaimable_at": NOTHING, "reclaimable_block": NOTHING}}
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


def submitted(outcome: SubmitOutcome, book: AddressBook, poll: str) -> Response:
    match outcome:
        case SubmittedOrder():
            body = jobs.PostedShape(hex_of(outcome.job_id), outcome.task_cid, hex_of(outcome.tx_hash))
            return responses.ok(body, status=201)
        case Probed():
            listed = market.Candidates[Digits](tuple(answers.candidate(row) for row in outcome.candidates))
            return responses.final(402, listed)
        case QuotedOrder():
            # 402 requests payment. 409 means that the signed amount is outdated.
            quote = answers.quote_body(book, outcome)
            return responses.final(409 if outcome.changed else 402, quote)
        case RefusedByChain() | WouldRefuse() | RelayBusy() | NoReceipt():
            return relay_responses.relayed(outcome, poll)
        case _:
            assert_never(outcome)


def cancelled(job_id: bytes, outcome: CancelOutcome) -> Response:
    if isinstance(outcome, RelayMined | HasEnded):
        return responses.ok(jobs.Cancelled(hex_of(job_id), hex_of(outcome.tx_hash)))
    return relay_responses.relayed(outcome, f"GET /v1/jobs/{hex_of(job_id)}")


@attrs.frozen(slots=True)
class OrderRoutes:
    book: AddressBook
    submissions: Submissions
    preflight: Preflight
    cancels: Cancels
    reads: IndexReads
    before_blocks: BeforeBlocks

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/jobs",
                id="postJob",
                tag="Jobs",
                about="Ask the market, get a quote, or post a job",
                details=(
                    "One body in three modes. Without `rate_in` and `rate_out` it is a question to the market"
                    " (`probe`): 402 with every live ask. There are no candidates where no provider offers that, and"
                    " for an unknown model, window or provider. With one of the two it is an order that lacks the"
                    " other: 400. With the signed order (`quote`): 402 with the price and the payment to sign. With"
                    " `auth_sig`, `amount` and a container as well (`submission`): the job is posted, 201. The quote is"
                    " answered before model, window and payer are checked. The job's id is known before it is sent."
                    " After a lost answer or a 504 look at GET /v1/jobs/{id}, then send the same again."
                ),
                handler=self.post,
                headers=PREFER,
                body=Body.any_of([MarketProbe, OrderBody], read_submission, _examples, limits.ORDER_BODY_BYTES),
                replies=(
                    Reply(201, shape=jobs.PostedShape, about="The job is posted"),
                    STORED,
                    Reply(402, shape=market.Candidates[Digits], about="Asked without rates: the live asks, ranked"),
                    Reply(402, shape=market.QuoteBodyShape, about="Asked with rates: the quote. Not an error"),
                    *malformed(*_REFUSALS),
                    Reply(
                        409,
                        shape=market.QuoteBodyShape,
                        about="`amount` is not the current one: a fresh quote. Sign a new payment, send again",
                    ),
                    *refused_by_chain("post"),
                    *RELAY,
                    Reply(503, "payer_code_read"),
                    Reply(503, "registry_floor_read"),
                    *STORE,
                ),
            ),
            Route(
                method="POST",
                path="/v1/jobs/check",
                id="checkJob",
                tag="Jobs",
                about="Report every check that an order fails",
                details=(
                    "Takes the body of POST /v1/jobs, as a quote or as a submission, and runs every check that posting"
                    " it runs. POST /v1/jobs answers with the first that fails, this route with all, and with the live"
                    " candidates that would take the order. Nothing is posted, stored or counted against budgets."
                    " Without `auth_sig` the payment and the container are not checked, and nothing that could be paid"
                    " with leaves the wallet. A field that cannot be read ends the check."
                ),
                handler=self.check,
                body=Body(limits.ORDER_BODY_BYTES, _as_it_is, lambda: object_schema(OrderBody), _check_examples),
                replies=(
                    Reply(200, shape=market.CheckedShape, about="The checks that fail, if any"),
                    *malformed(),
                    *CHAIN,
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
                    "Poll it: after a quarter of a second, then ever later, up to every five seconds, until `status`"
                    " is `completed`, `failed` or `cancelled`."
                ),
                handler=self.one,
                segments={"id": Parameter(BYTES32, "id of the job", example=WORDS["job_id"].example)},
                replies=(
                    Reply(200, shape=jobs.ClientJob, about="The job", example=_SETTLED),
                    *malformed(),
                    Reply(404),
                    *INDEX,
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
                    "Cancels an open job. 200 for a job that has ended means that nothing was done: `status` of GET"
                    " /v1/jobs/{id} shows how it ended. Such a job's cancel, too, must be signed by its owner within"
                    " 600 s."
                ),
                handler=self.cancel,
                segments={"id": Parameter(BYTES32, "id of the job", example=WORDS["job_id"].example)},
                body=Body.of(CancelBody, limits.CANCEL_BODY_BYTES),
                replies=(
                    Reply(200, shape=jobs.Cancelled, about="The job is cancelled, or had ended before"),
                    *malformed(),
                    *refused_by_chain("cancel"),
                    *RELAY,
                    Reply(503, "job_read"),
                ),
            ),
        ]

    async def post(self, request: Request) -> Response:
        body: MarketProbe | OrderBody = request.body
        poll = f"GET /v1/jobs/{hex_of(body.job_id)}" if isinstance(body, OrderBody) else ""
        outcome = await self.submissions.submit(body, wait=not request.prefers(RESPOND_ASYNC))
        if isinstance(outcome, Queued):
            return await self.before_blocks.stored(outcome.relay.subject)
        return submitted(outcome, self.book, poll)

    async def check(self, request: Request) -> Response:
        return responses.ok(answers.checked(await self.preflight.check(request.body), self.book))

    async def one(self, request: Request) -> Response:
        found = await self.reads.job.get(request.path["id"])
        if (row := found.value) is None:
            return responses.not_found(NoSuchObject("job"))
        at, block = row.reclaimable_at, None
        if at is not None:
            block = await self.reads.pace.first_after(found.snapshot, at)
        return responses.ok(answers.client_job(row, found.snapshot.block_number, block), snapshot=found.snapshot)

    async def cancel(self, request: Request) -> Response:
        job_id = request.path["id"]
        return cancelled(job_id, await self.cancels.cancel(job_id, request.body))
