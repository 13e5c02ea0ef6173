"""Routes of the market's page: `GET /` and its files, and the data that only this page uses: counts of jobs, a job's
transactions, and the prices paid over time."""

from typing import Final

import attrs

from common.api import jobs, market
from common.api.fields import BYTES32, Decimal, Text
from common.api.shapes import Digits
from common.api.states import JobState
from common.scalars import hex_of
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.pages.files import StaticFile, market_page
from coordinatord.api.pages.pages_sql import PaidRates, RateRange, buckets_of, read_counts, read_paid
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.relayer.endings_sql import JobTransaction, transactions_of
from coordinatord.http import responses
from coordinatord.http.response_cache import names_etag, not_modified
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX, Parameter, Reply, Request, Route, malformed
from coordinatord.storage.database.connections import Database


def job_counts(by_state: dict[int, int], block: int) -> jobs.JobCounts:
    opened, claimed, settled, cancelled = (str(by_state.get(state, 0)) for state in JobState)
    return jobs.JobCounts(open=opened, claimed=claimed, settled=settled, cancelled=cancelled, as_of_block=str(block))


def price_history(model_id: int, paid: list[PaidRates], block: int) -> market.PriceHistory:
    width, points = buckets_of(paid)
    return market.PriceHistory(
        model_id=str(model_id),
        bucket_secs=str(width),
        prices=tuple(
            market.PricePoint(str(one.since), str(one.jobs), _rates(one.rate_in), _rates(one.rate_out))
            for one in points
        ),
        as_of_block=str(block),
    )


def _rates(rates: RateRange) -> market.RateRangeShape[Digits]:
    return market.RateRangeShape(str(rates.low), str(rates.median), str(rates.high))


def job_transactions(found: list[JobTransaction]) -> jobs.JobTransactions[Digits]:
    return jobs.JobTransactions(
        tuple(
            jobs.JobTransactionShape(
                one.kind,  # type: ignore[arg-type] # the kinds that its statement selects
                hex_of(one.tx_hash),
                None if one.block_number is None else str(one.block_number),
            )
            for one in found
        )
    )


@attrs.frozen(slots=True)
class HistoryRoutes:
    reads: IndexReads
    database: Database

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs/counts",
                id="countJobs",
                tag="Job book",
                about="Count all jobs by their state",
                handler=self.counts,
                replies=(Reply(200, shape=jobs.JobCounts, about="The counts"), *INDEX),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}/transactions",
                id="listJobTransactions",
                tag="Job book",
                about="List the transactions of a job that the coordinator knows of",
                details=(
                    "Those that it sent itself, as long as it keeps them (RELAY_RETENTION_SECONDS), and the one that"
                    " ended the job where it had to be looked up. A call that its signer sent without the coordinator"
                    " is not among them: the chain's own logs have it."
                ),
                handler=self.transactions,
                segments={"job_id": Parameter(BYTES32)},
                replies=(Reply(200, shape=jobs.JobTransactions[Digits], about="The transactions"), *malformed()),
            ),
            Route(
                method="GET",
                path="/evm/models/{id}/prices",
                id="listPrices",
                tag="Models",
                about="Tell the rates paid for a model over time",
                details=(
                    "Low, median and high of the rates of settled jobs, by the time of their claim. It is a sample of"
                    " 2,048 jobs or so: all of a model with few, some from each stretch of the last weeks of one with"
                    " many. The length of a stretch follows from the time that they span."
                ),
                handler=self.prices,
                segments={"id": Parameter(Decimal(32), "id of the model", example=1)},
                replies=(Reply(200, shape=market.PriceHistory, about="The rates"), *malformed(), Reply(404), *INDEX),
                index_backed=True,
            ),
        ]

    async def counts(self, _: Request) -> Response:
        snapshot, by_state = await self.reads.lists.read(read_counts)
        return responses.ok(job_counts(by_state, snapshot.block_number), snapshot=snapshot)

    async def transactions(self, request: Request) -> Response:
        async with self.database.connection() as connection:
            found = await transactions_of(connection, request.path["job_id"])
        return responses.ok(job_transactions(found))

    async def prices(self, request: Request) -> Response:
        model_id = request.path["id"]
        snapshot, paid = await self.reads.lists.read(lambda database: read_paid(database, model_id))
        if paid is None:
            return responses.not_found(NoSuchObject("model"))
        return responses.ok(price_history(model_id, paid, snapshot.block_number), snapshot=snapshot)


_TAG: Final = "Page"
_KNOWN: Final = {"if-none-match": Parameter(Text(1024), "ETags of what the caller has")}


@attrs.frozen(slots=True)
class PageRoutes:
    """Routes of the page. They exist only if `enabled`."""

    enabled: bool = True
    files: dict[str, StaticFile] = attrs.field(factory=market_page)

    def routes(self) -> list[Route]:
        if not self.enabled:
            return []
        return [
            Route(
                method="GET",
                path="/",
                id="getPage",
                tag=_TAG,
                about="The page of this market, for people",
                handler=self.page,
                headers=_KNOWN,
                replies=(Reply(200, media=("text/html",)),),
            ),
            Route(
                method="GET",
                path="/web/{file}",
                id="getPageFile",
                tag=_TAG,
                about="A file that the page is made of",
                handler=self.file,
                segments={"file": Parameter(Text(64), "name of the file")},
                headers=_KNOWN,
                replies=(Reply(200, media=("text/css", "text/javascript", "image/svg+xml")), Reply(404)),
            ),
        ]

    async def page(self, request: Request) -> Response:
        return _serve(self.files["index.html"], request)

    async def file(self, request: Request) -> Response:
        found = self.files.get(request.path["file"])
        return responses.not_found(NoSuchObject("file")) if found is None else _serve(found, request)


def _serve(file: StaticFile, request: Request) -> Response:
    answer = Response(200, file.body, file.headers)
    known = request.headers.get("if-none-match")
    if known is not None and names_etag(known.encode(), file.etag):
        return not_modified(answer)
    return answer
