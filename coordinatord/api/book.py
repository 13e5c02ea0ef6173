"""The job book: pages of jobs, an owner's sums, one row, and the polls of providers."""

import attrs
import msgspec

from coordinatord.api import answers, views
from coordinatord.api.answers import Answer
from coordinatord.api.paging import page, page_of
from coordinatord.api.routes import INDEX, PAGE, Parameter, Reply, Request, Route, malformed
from coordinatord.fields import ADDRESS, BYTES32, Choice, Decimal
from coordinatord.service.index_reads import IndexReads
from coordinatord.service.outcomes import NotFound, NotSigned
from coordinatord.service.polls import Polls
from coordinatord.store.database import Database
from coordinatord.store.job_pages import read_page
from coordinatord.store.jobs import JobFilter, JobRow, read_summary
from coordinatord.store.snapshot import Snapshot

_FILTERS = {
    "state": Parameter(Choice(("Open", "Claimed", "Settled", "Cancelled"))),
    "model": Parameter(Decimal(32), "a model id"),
    "provider": Parameter(Decimal(32), "jobs claimed by this provider"),
    "owner": Parameter(ADDRESS),
    "min_rate_in": Parameter(Decimal(128)),
    "min_rate_out": Parameter(Decimal(128)),
    "posted_before": Parameter(Decimal(63), "posted at or before this block"),
    "order": Parameter(Choice(("oldest", "newest")), "by posting block"),
    "free": Parameter(Decimal(32), "provider poll: lease up to this many jobs"),
}


class JobList(msgspec.Struct):
    jobs: list[views.Job]
    as_of_block: views.Digits


@attrs.frozen(slots=True)
class Book:
    database: Database
    reads: IndexReads
    polls: Polls

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs",
                about="The job book; with `free`, a provider's poll for jobs to claim",
                handler=self.list,
                query={**_FILTERS, **PAGE},
                replies=(
                    Reply(200, shape=JobList),
                    *malformed(),
                    Reply(401, "invalid_session"),
                    Reply(403, "not_registered"),
                    *INDEX,
                ),
                session_with="free",
                index_backed=True,
                paged=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/summary",
                about="An owner's jobs, summed up",
                handler=self.summary,
                query={"owner": Parameter(ADDRESS, required=True)},
                replies=(Reply(200, shape=views.Summary), *malformed(), *INDEX),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}",
                about="One row of the book",
                handler=self.one,
                segments={"job_id": BYTES32},
                replies=(Reply(200, shape=views.JobAsOf), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def list(self, request: Request) -> Answer:
        query = request.query
        wanted = JobFilter(
            state=query.get("state"),
            model_id=query.get("model"),
            provider_id=query.get("provider"),
            owner=query.get("owner"),
            min_rate_in=query.get("min_rate_in"),
            min_rate_out=query.get("min_rate_out"),
            posted_before=query.get("posted_before"),
            newest_first=query.get("order") == "newest",
        )
        limit, offset = page_of(request)
        if request.session is None:
            snapshot, rows = await read_page(self.database, wanted, limit, offset)
            return page(request, snapshot, "jobs", rows, views.job)
        held = await self.polls.poll(request.session, wanted, query["free"], limit, offset)
        if isinstance(held, NotSigned):
            return answers.not_signed(held)
        snapshot, rows = held
        return page(request, snapshot, "jobs", rows, views.job)

    async def summary(self, request: Request) -> Answer:
        snapshot, rows = await read_summary(self.database, request.query["owner"])
        return answers.ok(views.summary(rows, snapshot.block_number), snapshot=snapshot)

    async def one(self, request: Request) -> Answer:
        found = await self.reads.job.get(request.path["job_id"])
        return answers.not_found(NotFound("job")) if found.value is None else _job(found.value, found.snapshot)


def _job(row: JobRow, snapshot: Snapshot) -> Answer:
    return answers.ok(views.job_as_of(row, snapshot.block_number), snapshot=snapshot)
