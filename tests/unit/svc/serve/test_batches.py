"""Batches of `/v1/batches` from the request to the results: restarts, cancels, an unreachable coordinator, files."""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import attrs
import msgspec
import pytest

from common.quotes import FeeTerms
from svc.batches.offers import LineOffer
from svc.records import Model, ModelDetails
from svc.serve.batch_files import BatchInputs
from svc.serve.batch_lines import BatchRequest, StoredBatch, shared_terms
from svc.serve.files import LocalFiles
from svc.serve.ledger import Ledger, LedgerJob, LedgerPurchase
from svc.serve.problems import Problem
from svc.serve.requests import AnswerForm, AnswerRequest
from svc.serve.settings import BuyingRule
from tests.unit.svc.fake_coordinator import Answer, Dropped, failing
from tests.unit.svc.serve.conftest import spoken
from tests.unit.svc.serve.market import Caller, ServedMarket, full_disk

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "demo/text", "input": "hi"}}\n'
OURS = "batch_00112233445566778899aabb"


def market_batch(metadata: dict[str, str], status: str = "completed") -> dict[str, Any]:
    moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        **{"id": "batch_of_the_market", "object": "batch", "endpoint": "/v1/responses", "input_file_id": "file-1"},
        **{"completion_window": "1h", "status": status, "errors": None, "output_file_id": None, "metadata": metadata},
        **{"error_file_id": "file-errors", "created_at": 100, "expires_at": 3_700, "svc": {"sla": "1h"}},
        **{f"{moment}_at": None for moment in moments},
        "request_counts": {"completed": 0, "failed": 1, "total": 1},
    }


BATCHES = "/v1/batches"
MADE = "batch_of_the_market"


async def left_behind(caller: Caller, folder: Path, **changed: Any) -> None:
    """Leave the state of a process that was killed between its post and the answer."""
    ledger = caller.served.context.ledger
    file = await LocalFiles(folder / "files", ledger).add("default", "lines.jsonl", "batch", LINE)
    now = caller.served.context.clock()
    known: dict[str, Any] = {"status": "posting", "amount": "5000", **changed}
    batch = StoredBatch(OURS, "default", "/v1/responses", file.id, "1h", int(now), **known)
    await ledger.put_document("batch", OURS, 100, "default", msgspec.json.encode(batch).decode())
    await ledger.add_purchase(LedgerPurchase(OURS, now, "default", "batch", "demo/text", "demo/text", "d", None))
    await ledger.add_job(LedgerJob(OURS, OURS, now, 0, 5_000, FeeTerms(250, 2_000)))


def listed(*batches: dict[str, Any]) -> Answer:
    ids = [batch["id"] for batch in batches] or [None]
    page = {"object": "list", "data": [*batches], "first_id": ids[0], "last_id": ids[-1], "has_more": False}
    return Answer(200, page)


def with_batch(market: ServedMarket, status: str = "completed", code: str = "expired") -> None:
    """Add the batch to the market."""
    tell, made = market.coordinator.tell, market_batch({"svc-serve": OURS}, status)
    line = {"id": "batch_req_x_1", "custom_id": None, "response": None, "error": {"code": code, "message": "why"}}
    line |= {"svc": {"job_id": None, "line": 1}}
    tell("GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337}))
    tell("POST /auth/session", Answer(200, {"token": "svc_sess_x", "expires_at": 9_999_999_999}))
    tell("GET /v1/batches", listed(made))
    tell(f"GET /v1/batches/{MADE}", Answer(200, made))
    tell("GET /v1/files/file-errors/content", Answer(200, msgspec.json.encode(line)))


async def reached(caller: Caller, *statuses: str) -> Any:
    while True:
        heard = (await caller.get(f"{BATCHES}/{OURS}")).json
        if heard["status"] in (statuses or ("completed", "failed", "expired", "cancelled")):
            return heard
        await anyio.sleep(1)


async def test_lost_batch_is_found_by_its_mark(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path, output_seconds=3_600)
    async with market.served(tmp_path) as caller:
        ledger = caller.served.context.ledger
        heard = await reached(caller)
        errors = await caller.get(f"/v1/files/{heard['error_file_id']}/content")
        file = (await caller.get(f"/v1/files/{heard['error_file_id']}")).json
        spent = await ledger.list_jobs_since(0)
    assert (heard["status"], heard["svc"]["batch_id"], heard["svc"]["cost"]) == ("completed", MADE, "0")
    assert heard["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    assert (errors.json["custom_id"], errors.json["response"]) == ("a", None)
    assert (errors.json["error"]["code"], errors.json["svc"]["code"]) == ("batch_expired", "expired")
    assert file["expires_at"] - file["created_at"] == 3_600
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]
    assert "POST /v1/batches" not in market.coordinator.routes()
    assert [path.name for path in (tmp_path / "files").iterdir() if "partial" in path.name] == []


async def test_posted_batch_survives_an_outage_at_the_start(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    known = market.coordinator.script["GET /v1/batches"]
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
    market.coordinator.tell("GET /v1/batches", Dropped())
    async with market.served(tmp_path) as caller:
        await anyio.sleep(600)
        assert (await caller.get(f"{BATCHES}/{OURS}")).json["status"] == "validating"
        market.coordinator.tell("GET /v1/batches", *known)
        heard = await reached(caller)
    assert (heard["status"], heard["svc"]["batch_id"]) == ("completed", MADE)


async def test_input_of_a_running_batch_may_be_deleted(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market, "in_progress")
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
        file = (await caller.get("/v1/files")).json["data"][0]
        await BatchInputs(LocalFiles(tmp_path / "files", caller.served.context.ledger)).copy_input(file["id"], OURS)
        assert (await caller.call("DELETE", f"/v1/files/{file['id']}", b"")).json["deleted"]
    with_batch(market)
    async with market.served(tmp_path) as caller:
        heard = await reached(caller)
    assert heard["status"] == "completed"
    assert not (tmp_path / "files" / OURS).exists()


# --- a full disk ----------------------------------------------------------------------------------------------


async def test_posted_batch_waits_until_the_disk_has_room(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
    async with market.served(tmp_path) as caller:
        with full_disk():
            await anyio.sleep(60)
            waiting = (await caller.get(f"{BATCHES}/{OURS}")).json
        heard = await reached(caller)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert waiting["status"] not in {"completed", "failed"}
    assert heard["status"] == "completed"
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]
    assert any("state folder" in said for said in caller.said)


@pytest.mark.parametrize("write", range(1, 7))
async def test_batch_survives_a_disk_full_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
    run, full, left = Ledger.run, ExitStack(), write

    async def fills_the_disk(self: Ledger, act: Callable[[sqlite3.Connection], Any]) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            full.enter_context(full_disk())
        return await run(self, act)

    async with market.served(tmp_path) as caller:
        monkeypatch.setattr(Ledger, "run", fills_the_disk)
        with full:
            await anyio.sleep(60)
        heard = await reached(caller)
        files = (await caller.get("/v1/files?purpose=batch_output")).json["data"]
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert heard["status"] == "completed"
    assert [file["id"] for file in files] == [heard["error_file_id"]]
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]


async def test_request_on_a_full_disk_is_a_503(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    content, headers = form(BATCH, ("file", LINE))
    async with market.served(tmp_path) as caller:
        file = (await caller.call("POST", "/v1/files", content, headers=headers)).json
        asked = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "1h"}
        with full_disk():
            refused = [
                await caller.call("POST", "/v1/files", content, headers=headers),
                await caller.post(BATCHES, asked),
                await caller.call("DELETE", f"/v1/files/{file['id']}", b""),
            ]
        assert [(heard.status, heard.code) for heard in refused] == [(503, "storage_failed")] * 3
        assert [heard.headers["x-should-retry"] for heard in refused] == ["true"] * 3
        assert (await caller.call("DELETE", f"/v1/files/{file['id']}", b"")).json["deleted"]
    assert [*(tmp_path / "files").iterdir()] == []


# --- cancels --------------------------------------------------------------------------------------------------


async def test_cancel_of_a_posted_batch_is_retried_until_answered(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market, "in_progress")
    cancel = f"POST /v1/batches/{MADE}/cancel"
    market.coordinator.tell(cancel, failing(400, "invalid_request_error", "too_early"))
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
    async with market.served(tmp_path) as caller:
        await reached(caller, "in_progress")
        refused = await caller.post(f"{BATCHES}/{OURS}/cancel", {})
        market.coordinator.tell(cancel, Answer(200, market_batch({"svc-serve": OURS}, "cancelling")))
        taken = await caller.post(f"{BATCHES}/{OURS}/cancel", {})
        with_batch(market, "cancelled", "cancelled")
        heard = await reached(caller)
        errors = await caller.get(f"/v1/files/{heard['error_file_id']}/content")
        late = await caller.post(f"{BATCHES}/{OURS}/cancel", {})
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (refused.status, taken.status, taken.json["status"]) == (400, 200, "cancelling")
    assert taken.json["cancelling_at"] is not None
    assert (heard["status"], heard["cancelled_at"] is not None) == ("cancelled", True)
    assert errors.json["error"]["code"] == "batch_cancelled"
    assert (late.status, late.code) == (409, "batch_not_cancellable")
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]


async def test_batch_cancelled_before_posting_is_never_posted(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    market.coordinator.tell("GET /v1/batches", listed())
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path, status="validating", cancelling=True)
    async with market.served(tmp_path) as caller:
        heard = await reached(caller)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (heard["status"], [job.cost for job in spent]) == ("cancelled", [0])
    assert "POST /v1/batches" not in market.coordinator.routes()


async def test_batch_not_posted_within_its_window_expires(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    with_batch(market)
    market.coordinator.tell("GET /v1/batches", listed())
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
        ledger = caller.served.context.ledger
        body = msgspec.json.decode(await ledger.get_document("batch", OURS, None) or "")
        await ledger.put_document(
            "batch", OURS, 100, "default", msgspec.json.encode(body | {"created_at": 100}).decode()
        )
    async with market.served(tmp_path) as caller:
        heard = await reached(caller)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (heard["status"], [(job.state, job.cost) for job in spent]) == ("expired", [("unpaid", 0)])


# --- requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/completions"}, "endpoint"),
        ({"endpoint": ["/v1/responses"]}, "endpoint"),
        ({"completion_window": "7d"}, "completion_window"),
        ({"completion_window": {}}, "completion_window"),
        ({"input_file_id": 1}, "input_file_id"),
        ({"input_file_id": "file-none"}, "file_id"),
        ({"metadata": "a text"}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": 3_600}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "last_active_at", "seconds": 3_600}}, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
    ],
)
async def test_batch_that_cannot_be_is_refused_and_leaves_nothing(
    changed: dict[str, Any], param: str, tmp_path: Path
) -> None:
    market = ServedMarket(spoken)
    async with market.served(tmp_path) as caller:
        file = await LocalFiles(tmp_path / "files", caller.served.context.ledger).add("default", "l", "batch", LINE)
        asked = {"input_file_id": file.id, "endpoint": "/v1/responses", "completion_window": "1h", **changed}
        heard = await caller.post(BATCHES, asked)
    async with market.served(tmp_path) as caller:  # the server starts, and lists no batch
        assert (await caller.get(BATCHES)).json["data"] == []
    assert (heard.status in {400, 404}, heard.json["error"]["param"]) == (True, param)


# --- files ----------------------------------------------------------------------------------------------------


def form(*parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    made = b""
    for name, content in parts:
        file = '; filename="lines.jsonl"' if name == "file" else ""
        made += f'--x\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return made + b"--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}


BATCH = ("purpose", b"batch")
CREATED = ("expires_after[anchor]", b"created_at")


async def test_file_expires_when_its_maker_said(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    async with market.served(tmp_path) as caller:
        context = caller.served.context
        content, headers = form(BATCH, CREATED, ("expires_after[seconds]", b"3600"), ("file", LINE))
        made = (await caller.call("POST", "/v1/files", content, headers=headers)).json
        files = LocalFiles(tmp_path / "files", context.ledger, lambda: context.clock() + 3_601)
        assert made["expires_at"] - made["created_at"] == 3_600
        assert [file.id for file in await files.list_files("default")] == []
        with pytest.raises(Problem):
            await files.read("default", made["id"])
        await files.remove_expired()
        assert (await caller.get(f"/v1/files/{made['id']}")).status == 404
    assert [*(tmp_path / "files").iterdir()] == []


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ((("purpose", b"assistants"), ("file", LINE)), "purpose"),
        ((BATCH,), "file"),
        ((BATCH, ("file", LINE), ("file", LINE)), "file"),
        ((BATCH, CREATED, ("file", LINE)), "expires_after.seconds"),
        ((BATCH, CREATED, ("expires_after[seconds]", b"60"), ("file", LINE)), "expires_after.seconds"),
        ((BATCH, ("expires_after[seconds]", b"3600"), ("file", LINE)), "expires_after.anchor"),
    ],
)
async def test_form_that_cannot_be_is_refused_and_leaves_nothing(
    parts: tuple[tuple[str, bytes], ...], param: str, tmp_path: Path
) -> None:
    market = ServedMarket(spoken)
    content, headers = form(*parts)
    async with market.served(tmp_path) as caller:
        heard = await caller.call("POST", "/v1/files", content, headers=headers)
    assert (heard.status, heard.json["error"]["param"]) == (400, param)
    assert [*(tmp_path / "files").iterdir()] == []


async def test_list_is_paged_either_way_and_ends(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    async with market.served(tmp_path) as caller:
        files = LocalFiles(tmp_path / "files", caller.served.context.ledger)
        made = [(await files.add("default", f"{number}", "batch", LINE)).id for number in range(5)]
        for order, expected in (("desc", made[::-1]), ("asc", made)):
            seen: list[str] = []
            page: Any = {"has_more": True, "last_id": None}
            while page["has_more"]:
                after = f"&after={page['last_id']}" if page["last_id"] else ""
                page = (await caller.get(f"/v1/files?limit=2&order={order}{after}")).json
                seen += [file["id"] for file in page["data"]]
            assert seen == expected
        wrong = [
            await caller.get(f"/v1/files?{each}") for each in ("after=file-none", "limit=0", "order=up", "limit=²")
        ]
    assert [heard.json["error"]["param"] for heard in wrong] == ["after", "limit", "order", "limit"]


UNRATED = BuyingRule(window="1h", providers=(7,), rate_in=None, rate_out=None, max_output_tokens=None)
RATED = attrs.evolve(UNRATED, rate_in=3, rate_out=5)


def requests(*rules: BuyingRule) -> list[BatchRequest]:
    model = Model("m", "demo", ModelDetails(1, True, None, "/v1/responses"))
    return [
        BatchRequest(str(number), AnswerRequest("/v1/responses", "m", model, rule, {}, AnswerForm()))
        for number, rule in enumerate(rules)
    ]


def test_lines_without_rates_stay_with_the_chosen_providers() -> None:
    """Without an offer, the market's plan could give these lines to other providers."""
    assert shared_terms(requests(UNRATED, RATED)) == ((7,), LineOffer())
    assert shared_terms(requests(UNRATED)) == ((7,), LineOffer())
    assert shared_terms(requests(RATED)) == ((7,), None)
