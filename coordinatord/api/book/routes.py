"""Routes of the job book: pages of jobs, sums of an owner, one job, and the polls of providers."""

import time
from collections.abc import Callable
from typing import Final

import attrs

from common.api import jobs, limits, why
from common.api.fields import ADDRESS, BYTES32, Choice, QueryUint
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from coordinatord.api.book import bodies
from coordinatord.api.book.job_pages_sql import JobFilter, read_page
from coordinatord.api.book.owner_sums_sql import read_summary
from coordinatord.api.book.polls import Poll, PollAnswer, PollService, build_poll
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.book.why import UnclaimedJobExplainer
from coordinatord.base.outcomes import NoSuchObject, Unauthorised
from coordinatord.http import relay_responses, responses
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.pages import page_response, read_page_bounds
from coordinatord.http.responses import Response
from coordinatord.http.routing import (
    INDEX_REPLIES,
    PAGE_PARAMETERS,
    Parameter,
    Reply,
    Request,
    Route,
    malformed_replies,
)
from coordinatord.http.streaming import HeldResponse

_REQUESTS_PER_SECOND_OF_WALK: Final = 100  # each 10 ms of reading rows counts as one request
_JOB_PARAMETERS = {
    "state": Parameter(
        Choice(("Open", "Claimed", "Settled", "Cancelled")),
        "only jobs in this state; `Cancelled` covers every job that ended without a result",
        example="Open",
    ),
    "model": Parameter(QueryUint(32), "only jobs of the model with this id", example=1),
    "provider": Parameter(QueryUint(32), "only jobs claimed by the provider with this id"),
    "owner": Parameter(ADDRESS, "only jobs that this wallet owns"),
    "min_rate_in": Parameter(
        QueryUint(128), "only jobs that pay at least this rate for 10^6 input units, in base units"
    ),
    "min_rate_out": Parameter(
        QueryUint(128), "only jobs that pay at least this rate for 10^6 output units, in base units"
    ),
    "posted_before": Parameter(QueryUint(63), "only jobs posted at or before this block"),
    "order": Parameter(
        Choice(("oldest", "newest")),
        "order of the posts: `oldest` first (the default) or `newest`; with both, a poll leases the oldest jobs",
    ),
    "free": Parameter(
        QueryUint(32),
        "makes the request a provider's poll: number of jobs that the provider wants to hold in total, including jobs"
        " that it holds already; 0 leases no more jobs",
    ),
    "wait": Parameter(
        QueryUint(32, 0, limits.MAX_POLL_WAIT_S),
        "seconds that a poll with free slots waits while there is no job for it, 0 (the default) to"
        f" {limits.MAX_POLL_WAIT_S}",
    ),
    "pending": Parameter(
        Choice(("0", "1")),
        "`1`: also return jobs whose post is not mined yet, in the answer's `pending`, if the poll has free slots",
    ),
}


_OPEN_EXAMPLE = {
    "jobs": [
        {
            "state": 0,
            "ended_because": 0,
            "provider_id": "0",
            "claimed_at": "0",
            "completion_tok": "0",
            "result_cid": None,
            "reclaimable_at": NO_EXAMPLE,
            "ended_at": NO_EXAMPLE,
        }
    ]
}

_SETTLED_EXAMPLE = {"reclaimable_at": NO_EXAMPLE}
_WHY_EXAMPLE = {"state": 0}


@attrs.frozen(slots=True)
class BookRoutes:
    """`buckets` limits requests per caller. A page whose query reads many rows counts as several requests."""

    reads: IndexReads
    polls: PollService
    explainer: UnclaimedJobExplainer
    buckets: TokenBuckets
    clock: Callable[[], float] = time.monotonic

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs",
                id="listJobs",
                tag="Job book",
                about="List jobs; with `free`, poll for jobs to claim",
                details=(
                    "All filters are optional. With `free`, the request is a provider's poll. A poll needs a provider's"
                    " session, `state=Open` and `model`. It records the provider as live with this many free slots for"
                    " the model, leases jobs to the provider (open bids, and orders designated to the provider, oldest"
                    " first), and returns all jobs that the provider holds. Every poll returns a job until the job is"
                    " claimed or its lease expires, so claim the listed jobs at once. A job that was cancelled a moment"
                    " ago may still be listed. With `wait`, the answer comes as soon as there is a job, or without a"
                    " job when the time is over. It comes earlier if the caller has too many waiting requests."
                ),
                handler=self.list_jobs,
                query={**_JOB_PARAMETERS, **PAGE_PARAMETERS},
                replies=(
                    Reply(200, shape=jobs.JobList, about="A page of jobs", example=_OPEN_EXAMPLE),
                    *malformed_replies(),
                    Reply(401, "invalid_session"),
                    Reply(403, "not_registered"),
                    *INDEX_REPLIES,
                ),
                session_if_query="free",
                index_backed=True,
                paged=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/summary",
                id="getOwnerSummary",
                tag="Job book",
                about="Summarise an owner's jobs",
                handler=self.read_summary,
                query={"owner": Parameter(ADDRESS, "wallet that owns the jobs", required=True)},
                replies=(Reply(200, shape=jobs.Summary, about="The summary"), *malformed_replies(), *INDEX_REPLIES),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}",
                id="getBookJob",
                tag="Job book",
                about="Read one row of the job book",
                handler=self.read_job,
                segments={"job_id": Parameter(BYTES32)},
                replies=(
                    Reply(200, shape=jobs.JobAsOf, about="The job", example=_SETTLED_EXAMPLE),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}/why",
                id="whyJob",
                tag="Jobs",
                about="Explain why no provider has claimed a job",
                details=(
                    "For an open job, the answer lists every provider that polls or asks for its model, the reasons"
                    " that keep each provider from the job, and the changes that would help. `takes` means that the"
                    " provider's next poll would lease it the job and that the job meets its asks; the provider may"
                    " still decline it. The answer is up to a second old. For a claimed or ended job, it has the"
                    " verdict alone."
                ),
                handler=self.explain_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=MEMBER_TEXTS["job_id"].example)},
                replies=(
                    Reply(200, shape=why.Why, about="The verdict", example=_WHY_EXAMPLE),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
                changes_between_blocks=True,
            ),
        ]

    async def list_jobs(self, request: Request) -> Response | HeldResponse:
        query = request.query
        job_filter = JobFilter(
            state=query.get("state"),
            model_id=query.get("model"),
            provider_id=query.get("provider"),
            owner=query.get("owner"),
            min_rate_in=query.get("min_rate_in"),
            min_rate_out=query.get("min_rate_out"),
            posted_before=query.get("posted_before"),
            newest_first=query.get("order") == "newest",
        )
        limit, offset = read_page_bounds(request)
        if request.session is None:
            return await self._page_response(request, job_filter, limit, offset)
        wants_offers = query.get("pending") == "1"
        poll = build_poll(request.session, job_filter, query["free"], limit, offset, wants_offers=wants_offers)
        if isinstance(poll, Unauthorised):
            return relay_responses.unauthorised_response(poll)
        seconds: int = query.get("wait", 0)
        if not seconds:
            return await self._poll_response(request, await self.polls.answer(poll))

        async def answer(poll: Poll = poll) -> tuple[Response, float]:
            leased, waited = await self.polls.answer_or_wait(poll, seconds=seconds, caller=request.caller)
            return await self._poll_response(request, leased), waited

        return HeldResponse(answer)

    async def _poll_response(self, request: Request, leased: PollAnswer) -> Response:
        extra_members: dict[str, object] = {}
        if leased.offers is not None:
            extra_members["pending"] = [bodies.pending_job_shape(job) for job in leased.offers]
        if contexts := await self.polls.read_trace_contexts(leased):
            extra_members["traces"] = bodies.trace_shapes(contexts)
        return page_response(request, leased.snapshot, "jobs", leased.jobs, bodies.job_shape, **extra_members)

    async def _page_response(self, request: Request, job_filter: JobFilter, limit: int, offset: int) -> Response:
        began = self.clock()
        snapshot, rows = await self.reads.lists.read(lambda database: read_page(database, job_filter, limit, offset))
        if not job_filter.has_counts:  # PostgreSQL read all rows up to the page
            await self.buckets.wait_and_take(request.caller, (self.clock() - began) * _REQUESTS_PER_SECOND_OF_WALK)
        return page_response(request, snapshot, "jobs", rows, bodies.job_shape)

    async def read_summary(self, request: Request) -> Response:
        snapshot, rows = await self.reads.lists.read(lambda database: read_summary(database, request.query["owner"]))
        return responses.ok(bodies.summary_shape(rows, snapshot.block_number), snapshot=snapshot)

    async def explain_job(self, request: Request) -> Response:
        found = await self.explainer.explain(request.path["id"])
        return responses.not_found(found) if isinstance(found, NoSuchObject) else responses.ok(found)

    async def read_job(self, request: Request) -> Response:
        found = await self.reads.jobs.get(request.path["job_id"])
        if found.value is None:
            return responses.not_found(NoSuchObject("job"))
        return responses.ok(bodies.job_shape_as_of(found.value, found.snapshot.block_number), snapshot=found.snapshot)
