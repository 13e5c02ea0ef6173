"""`svcd earnings`: a day's jobs by model, their outcomes, and amounts from the chain if a node is configured."""

import csv
import io
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from common import abi
from common.artifacts import event_topic, load_artifact
from common.daemon.process import Fatal
from common.scalars import hex_of
from svcd.base.clock import Clock
from svcd.journal import entries
from svcd.journal.book_row import Job
from svcd.journal.journal import JOURNAL_FILE
from svcd.operator.earnings import Earnings, read_earnings
from svcd.operator.earnings_report import earnings_csv, earnings_table
from tests.support.fakes.market import BOOK, START, Market
from tests.support.fakes.market_answers import error, instead
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svcd.stages.running import config_for

DAY = 86_400
TODAY, YESTERDAY = "2027-01-15", "2027-01-14"  # START is within TODAY


@attrs.define
class History:
    """A node with a test's logs. It rejects queries of more than ten blocks."""

    logs: list[tuple[int, bytes, str, list[bytes], bytes]] = attrs.field(factory=list)  # block, address, event, …
    reputation: int = 500
    ranges: list[int] = attrs.field(factory=list)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        told = getattr(self, "_" + re.sub(r"([A-Z])", r"_\1", body["method"]).lower())(*body["params"])
        if told is None:
            return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "range"}})
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": told})

    def _eth_block_number(self) -> str:
        return hex(30)

    def _eth_get_block_by_number(self, number: str, _: bool) -> dict[str, str]:
        return {"timestamp": hex(START - DAY if int(number, 16) < 10 else START)}

    def _eth_call(self, _: object, at: str) -> str:
        assert int(at, 16) == 0
        (entry,) = (
            e for e in load_artifact("ProviderRegistry").abi if e["type"] == "function" and e["name"] == "provider"
        )
        words = [
            abi.uint(self.reputation if field["name"] == "reputation" else 0)
            for field in entry["outputs"][0]["components"]
        ]
        return hex_of(b"".join(words))

    def _eth_get_logs(self, wanted: dict[str, Any]) -> list[dict[str, Any]] | None:
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        self.ranges.append(last - first + 1)
        if last - first >= 10:
            return None
        return [
            {"blockNumber": hex(block), "topics": [hex_of(topic) for topic in topics], "data": hex_of(data)}
            for block, address, _, topics, data in self.logs
            if first <= block <= last
            and hex_of(address) == wanted["address"]
            and hex_of(topics[0]) == wanted["topics"][0]
        ]

    def happened(self, block: int, contract: str, event: str, topics: list[bytes], data: bytes) -> None:
        address = {"JobRegistry": BOOK.job_registry, "ProviderRegistry": BOOK.provider_registry}[contract]
        self.logs.append((block, address, event, [event_topic(load_artifact(contract), event), *topics], data))


@pytest.fixture
def market() -> Market:
    """Return a market with two settled jobs (one from yesterday), one failed and one reclaimed today, one open, and
    one from long ago."""
    market = Market(lambda: START)

    def ended(because: int, ago: int = 0, **changed: Any) -> str:
        text = str(len(market.jobs))
        job = market.post(
            market.container(market.envelope({"input": text}).encode()),
            rate_in="0",
            rate_out="1000000",
            units_out="100",
        )
        market.claim(job, ago=ago)
        market.end(job, because)
        market.jobs[job] |= {"completion_tok": "40" if because == 1 else "0", **changed}
        return job

    ended(1)
    ended(1, DAY, model_id="3")
    ended(3)
    ended(4)
    ended(1, 30 * DAY)
    market.post()
    return market


async def told(market: Market, state: Path, history: History | None = None, days: int = 7) -> Earnings:
    async def route(request: httpx.Request) -> httpx.Response:
        if history is not None and request.url.host == "node":
            return await history.handle(request)
        return await market.handle(request)

    real = httpx.AsyncClient
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            httpx, "AsyncClient", lambda **given: real(transport=StreamedTransport(route), base_url=given["base_url"])
        )
        config = config_for(market, state, addresses=BOOK, rpc_url="http://node" if history is not None else None)
        return await read_earnings(config, days, Clock(lambda: START))


async def test_jobs_are_counted_by_day_model_and_outcome(market: Market, tmp_path: Path) -> None:
    found = await told(market, tmp_path)
    # Cap 100, fee 2 (250 basis points), gas fee 2000: the amount is 2102. 40 units cost 40, plus a fee of 1.
    assert {pair: attrs.astuple(row) for pair, row in found.rows.items()} == {
        (YESTERDAY, "demo/image"): (1, 40, 2001, 2000, 61, 0, 0),
        (TODAY, "demo/text"): (1, 40, 2001, 2000, 61 + 2 * 2102, 1, 1),
    }
    assert found.reputation_changes is None
    table = earnings_table(found)
    assert f"{TODAY}  demo/text         1  0.00004  0.002001  0.004265       1          1" in table
    assert "in all" in table
    assert "reputation 500; set rpc_url to see its changes by day" in table


async def test_days_before_the_first_are_left_out(market: Market, tmp_path: Path) -> None:
    assert {day for day, _ in (await told(market, tmp_path, days=1)).rows} == {TODAY}


async def test_node_tells_the_chains_own_amounts_and_reputation_by_day(market: Market, tmp_path: Path) -> None:
    history, me = History(), abi.uint(7)
    job = next(job for job, row in market.jobs.items() if row["ended_because"] == 1)
    amounts = abi.encode(abi.uint(40), abi.uint(33), abi.uint(3), abi.uint(99), abi.dynamic_string("bafk"))
    history.happened(12, "JobRegistry", "JobSettled", [bytes.fromhex(job[2:]), bytes(me)], amounts)
    for block, reputation in ((5, 505), (12, 510), (20, 485), (28, 385)):
        history.happened(
            block,
            "ProviderRegistry",
            "StandingSet",
            [bytes(me)],
            bytes(abi.static_struct((abi.uint(reputation), abi.uint(40)))),
        )
    found = await told(market, tmp_path, history)
    row = found.rows[TODAY, "demo/text"]
    assert (row.earned, row.fees, row.refunded) == (33, 3, 99 + 2 * 2102)
    assert found.reputation_changes == {YESTERDAY: 5, TODAY: -120}
    assert f"reputation 500 ({YESTERDAY} +5, {TODAY} -120)" in earnings_table(found)
    assert history.ranges[-1] <= 10  # the node's limit


async def test_csv_has_base_units_and_the_journals_reasons(market: Market, tmp_path: Path) -> None:
    with closing(entries.open_database(tmp_path / JOURNAL_FILE)) as connection:
        for reason in ("backend_error", "sla_abandon", "backend_error"):
            job = Job.read(market.jobs[market.post(market.container())])
            connection.execute(*entries.insert_claiming(job, "demo/text", START))
            connection.execute(*entries.mark_ended(job.job_id, "failed", reason, START))
    found = await told(market, tmp_path)
    rows = list(csv.DictReader(io.StringIO(earnings_csv(found))))
    assert [(row["day"], row["model"], row["earned"]) for row in rows] == [
        (YESTERDAY, "demo/image", "40"),
        (TODAY, "demo/text", "40"),
    ]
    assert rows[1]["reasons"] == "backend_error=2 sla_abandon=1"
    assert f"{TODAY} demo/text: not settled for 2 × backend_error, 1 × sla_abandon" in earnings_table(found)


async def test_wallet_without_a_provider_is_reported(market: Market, tmp_path: Path) -> None:
    market.always["session"] = instead(error(403, "not_registered"))
    with pytest.raises(Fatal, match="not a registered provider"):
        await told(market, tmp_path)
