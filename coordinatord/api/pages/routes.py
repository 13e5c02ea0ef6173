"""Routes of the market's page: `GET /` and its files, and the data that only this page uses.

The data are counts of jobs and slots, a search by the beginning of an id, times of blocks, a job's transactions, and
the prices paid over time.
"""

import re
from typing import Final

import attrs

from common.api import jobs, market
from common.api.fields import BYTES32, QueryUint, Schema, Text
from common.api.shapes import Digits
from common.api.states import JobState
from common.refusal import Refused
from common.scalars import hex_of, read_uint
from common.web.files import StaticFile
from coordinatord.api.book.reads import IndexReads
from coordinatord.api.pages.files import market_page_files
from coordinatord.api.pages.pages_sql import (
    PaidRates,
    RateRange,
    group_into_buckets,
    read_block_times,
    read_counts,
    read_paid_rates,
    read_slots,
)
from coordinatord.api.pages.search_sql import Match, find_matches
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.chain.relayer.endings_sql import JobTransaction, read_job_transactions
from coordinatord.http import responses
from coordinatord.http.response_cache import matches_etag, not_modified_response
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX_REPLIES, Parameter, Reply, Request, Route, malformed_replies
from coordinatord.storage.database.connections import Database

_MAX_BLOCK_NUMBERS: Final = 100


@attrs.frozen(slots=True)
class HexPrefix:
    """Reads the beginning of an id: 0x and at least four hex digits."""

    pattern: str = "^0x[0-9a-fA-F]{4,64}$"

    def read(self, value: object, param: str) -> str:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise Refused(f"{param} must be 0x, followed by 4 to 64 hex digits", param)
        return value[2:].lower()

    def schema(self) -> Schema:
        return {"type": "string", "pattern": self.pattern}


@attrs.frozen(slots=True)
class BlockNumbers:
    """Reads block numbers that are separated by commas."""

    pattern: str = rf"^[0-9]{{1,19}}(,[0-9]{{1,19}}){{0,{_MAX_BLOCK_NUMBERS - 1}}}$"

    def read(self, value: object, param: str) -> tuple[int, ...]:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise Refused(f"{param} must be 1 to {_MAX_BLOCK_NUMBERS} decimal numbers, separated by commas", param)
        return tuple(read_uint(number, 63, param) for number in value.split(","))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": self.pattern}


def job_counts_shape(by_state: dict[int, int], block: int) -> jobs.JobCounts:
    opened, claimed, settled, cancelled = (str(by_state.get(state, 0)) for state in JobState)
    return jobs.JobCounts(open=opened, claimed=claimed, settled=settled, cancelled=cancelled, as_of_block=str(block))


def price_history_shape(model_id: int, paid: list[PaidRates], block: int) -> market.PriceHistory:
    width, points = group_into_buckets(paid)
    return market.PriceHistory(
        model_id=str(model_id),
        bucket_secs=str(width),
        prices=tuple(
            market.PricePoint(str(one.since), str(one.jobs), _rates_shape(one.rate_in), _rates_shape(one.rate_out))
            for one in points
        ),
        as_of_block=str(block),
    )


def _rates_shape(rates: RateRange) -> market.RateRangeShape[Digits]:
    return market.RateRangeShape(str(rates.low), str(rates.median), str(rates.high))


def job_transactions_shape(transactions: list[JobTransaction]) -> jobs.JobTransactions[Digits]:
    return jobs.JobTransactions(
        tuple(
            jobs.JobTransactionShape(
                one.kind,  # type: ignore[arg-type] # the kinds that its statement selects
                hex_of(one.tx_hash),
                None if one.block_number is None else str(one.block_number),
            )
            for one in transactions
        )
    )


def search_match_shape(match: Match) -> market.SearchMatch:
    is_number = match.kind == "provider"
    return market.SearchMatch(match.kind, str(int.from_bytes(match.id, "big")) if is_number else hex_of(match.id))


@attrs.frozen(slots=True)
class PageDataRoutes:
    reads: IndexReads
    database: Database
    liveness_ms: int

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/jobs/counts",
                id="countJobs",
                tag="Job book",
                about="Count all jobs by their state",
                handler=self.read_counts,
                replies=(Reply(200, shape=jobs.JobCounts, about="The counts"), *INDEX_REPLIES),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/slots",
                id="countSlots",
                tag="Providers",
                about="Count the slots of listed providers that polled recently",
                handler=self.read_slots,
                replies=(Reply(200, shape=market.SlotCountsShape, about="The counts"), *INDEX_REPLIES),
                index_backed=True,
                changes_between_blocks=True,
            ),
            Route(
                method="GET",
                path="/evm/search",
                id="search",
                tag="Job book",
                about="Find jobs, owners and providers by the beginning of an id",
                handler=self.search,
                query={"prefix": Parameter(HexPrefix(), "beginning of an id", required=True, example="0x5dd39f")},
                replies=(
                    Reply(200, shape=market.SearchMatches, about="The matches"),
                    *malformed_replies(),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/blocks",
                id="listBlockTimes",
                tag="Job book",
                about="Read the times of blocks",
                details="Lists only blocks that are near the head or have an event in the log.",
                handler=self.read_blocks,
                query={"numbers": Parameter(BlockNumbers(), "numbers of blocks", required=True, example="42,43")},
                replies=(Reply(200, shape=market.BlockTimes, about="The times"), *malformed_replies(), *INDEX_REPLIES),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/evm/jobs/{job_id}/transactions",
                id="listJobTransactions",
                tag="Job book",
                about="List the known transactions of a job",
                details=(
                    "Lists transactions that the coordinator sent and still keeps (RELAY_RETENTION_SECONDS), and the"
                    " transaction that ended the job if it was looked up. Calls sent without the coordinator are only"
                    " in the chain's logs."
                ),
                handler=self.read_transactions,
                segments={"job_id": Parameter(BYTES32)},
                replies=(
                    Reply(200, shape=jobs.JobTransactions[Digits], about="The transactions"),
                    *malformed_replies(),
                ),
            ),
            Route(
                method="GET",
                path="/evm/models/{id}/prices",
                id="listPrices",
                tag="Models",
                about="Show the rates paid for a model over time",
                details=(
                    "Low, median and high of the rates of settled jobs, grouped by the time of their claim. They come"
                    " from a sample of about 2,048 jobs: all jobs of a rare model, or some from each period of the last"
                    " weeks of a busy one. The length of a group follows from the time that the sample spans."
                ),
                handler=self.read_prices,
                segments={"id": Parameter(QueryUint(32), "id of the model", example=1)},
                replies=(
                    Reply(200, shape=market.PriceHistory, about="The rates"),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
        ]

    async def read_counts(self, _: Request) -> Response:
        snapshot, by_state = await self.reads.lists.read(read_counts)
        return responses.ok(job_counts_shape(by_state, snapshot.block_number), snapshot=snapshot)

    async def read_slots(self, _: Request) -> Response:
        snapshot, found = await self.reads.lists.read(lambda database: read_slots(database, self.liveness_ms))
        block = str(snapshot.block_number)
        counts = market.SlotCountsShape(str(found.providers), str(found.slots), str(found.free_slots), block)
        return responses.ok(counts, snapshot=snapshot)

    async def search(self, request: Request) -> Response:
        prefix = request.query["prefix"]
        snapshot, result = await self.reads.lists.read(lambda database: find_matches(database, prefix))
        shown = tuple(map(search_match_shape, result.matches))
        return responses.ok(market.SearchMatches(shown, result.has_more, str(snapshot.block_number)), snapshot=snapshot)

    async def read_blocks(self, request: Request) -> Response:
        numbers = request.query["numbers"]
        snapshot, times = await self.reads.lists.read(lambda database: read_block_times(database, numbers))
        known = tuple(market.BlockTime(str(number), str(time)) for number, time in sorted(times.items()))
        return responses.ok(market.BlockTimes(known, str(snapshot.block_number)), snapshot=snapshot)

    async def read_transactions(self, request: Request) -> Response:
        async with self.database.connection() as connection:
            found = await read_job_transactions(connection, request.path["job_id"])
        return responses.ok(job_transactions_shape(found))

    async def read_prices(self, request: Request) -> Response:
        model_id = request.path["id"]
        snapshot, paid = await self.reads.lists.read(lambda database: read_paid_rates(database, model_id))
        if paid is None:
            return responses.not_found(NoSuchObject("model"))
        return responses.ok(price_history_shape(model_id, paid, snapshot.block_number), snapshot=snapshot)


_TAG: Final = "Page"
_IF_NONE_MATCH: Final = {"if-none-match": Parameter(Text(1024), "etags of the client's cached responses")}


@attrs.frozen(slots=True)
class PageRoutes:
    """Routes of the market's page. Without `enabled`, the list of routes is empty."""

    enabled: bool = True
    files: dict[str, StaticFile] = attrs.field(factory=market_page_files)

    def routes(self) -> list[Route]:
        if not self.enabled:
            return []
        return [
            Route(
                method="GET",
                path="/",
                id="getPage",
                tag=_TAG,
                about="Serve the web page of this market",
                handler=self.serve_page,
                headers=_IF_NONE_MATCH,
                replies=(Reply(200, media=("text/html",)),),
            ),
            Route(
                method="GET",
                path="/web/{file}",
                id="getPageFile",
                tag=_TAG,
                about="Serve a file of the web page",
                handler=self.serve_file,
                segments={"file": Parameter(Text(64), "name of the file")},
                headers=_IF_NONE_MATCH,
                replies=(Reply(200, media=("text/css", "text/javascript", "image/svg+xml")), Reply(404)),
            ),
        ]

    async def serve_page(self, request: Request) -> Response:
        return _file_response(self.files["index.html"], request)

    async def serve_file(self, request: Request) -> Response:
        found = self.files.get(request.path["file"])
        return responses.not_found(NoSuchObject("file")) if found is None else _file_response(found, request)


def _file_response(file: StaticFile, request: Request) -> Response:
    answer = Response(200, file.body, file.headers)
    known = request.headers.get("if-none-match")
    if known is not None and matches_etag(known.encode(), file.etag):
        return not_modified_response(answer)
    return answer
