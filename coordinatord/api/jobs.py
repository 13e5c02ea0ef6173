"""Jobs as clients see them: quote, post, read, cancel."""

import attrs

from common.address_book import AddressBook
from common.scalars import hex_of
from coordinatord.api import answers, views, write_views
from coordinatord.api.answers import Answer
from coordinatord.api.routes import INDEX, KIB, MIB, RELAY, STORE, Body, Reply, Request, Route, malformed
from coordinatord.fields import BYTES32
from coordinatord.service.cancel import CancelBody, Cancels
from coordinatord.service.index_reads import IndexReads
from coordinatord.service.orders import MarketProbe, OrderBody, read_submission
from coordinatord.service.outcomes import NotFound
from coordinatord.service.submission import Submissions
from coordinatord.store.jobs import JobRow
from coordinatord.store.snapshot import Snapshot

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


@attrs.frozen(slots=True)
class Jobs:
    book: AddressBook
    submissions: Submissions
    cancels: Cancels
    reads: IndexReads

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/jobs",
                about="Ask the market (without rates), get a quote (with rates), or post a job (with auth_sig)",
                handler=self.post,
                body=Body.any_of([MarketProbe, OrderBody], read_submission, 20 * MIB),
                replies=(
                    Reply(201, shape=write_views.Posted),
                    Reply(402, shape=write_views.Candidates),
                    Reply(402, shape=write_views.QuoteBody),
                    *malformed(*_REFUSALS),
                    Reply(409, shape=write_views.QuoteBody),
                    Reply(409, "contract error"),
                    *RELAY,
                    Reply(503, "payer_code_read"),
                    Reply(503, "registry_floor_read"),
                    *STORE,
                ),
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}",
                about="One job",
                handler=self.one,
                segments={"id": BYTES32},
                replies=(Reply(200, shape=views.ClientJob), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
            Route(
                method="POST",
                path="/v1/jobs/{id}/cancel",
                about="Take an open job back; one that has ended stays as it is",
                handler=self.cancel,
                segments={"id": BYTES32},
                body=Body.of(CancelBody, 8 * KIB),
                replies=(
                    Reply(200, shape=write_views.Cancelled),
                    *malformed(),
                    Reply(409, "StaleOp"),
                    Reply(409, "NotCancellable"),
                    Reply(409, "NotTheOwner"),
                    Reply(409, "contract error"),
                    *RELAY,
                    Reply(503, "job_read"),
                ),
            ),
        ]

    async def post(self, request: Request) -> Answer:
        body: MarketProbe | OrderBody = request.body
        poll = f"GET /v1/jobs/{hex_of(body.job_id)}" if isinstance(body, OrderBody) else ""
        return answers.submitted(await self.submissions.submit(body), self.book, poll)

    async def one(self, request: Request) -> Answer:
        found = await self.reads.job.get(request.path["id"])
        return answers.not_found(NotFound("job")) if found.value is None else _client_job(found.value, found.snapshot)

    async def cancel(self, request: Request) -> Answer:
        job_id = request.path["id"]
        return answers.cancelled(job_id, await self.cancels.cancel(job_id, request.body))


def _client_job(row: JobRow, snapshot: Snapshot) -> Answer:
    return answers.ok(views.client_job(row, snapshot.block_number), snapshot=snapshot)
