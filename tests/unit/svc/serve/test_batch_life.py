"""A batch that was posted when `svc serve` ended: found again by its mark, and never posted twice."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from common.quotes import Terms
from svc.serve.batch_lines import StoredBatch
from svc.serve.files import LocalFiles
from svc.serve.ledger import LedgerJob, LedgerPurchase
from tests.unit.svc.fake_coordinator import Answer
from tests.unit.svc.serve.conftest import spoken
from tests.unit.svc.serve.market import Caller, ServedMarket

pytestmark = pytest.mark.anyio

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


async def left_behind(caller: Caller, folder: Path) -> None:
    """As a process leaves it that was killed between the post and its answer."""
    ledger = caller.served.trade.ledger
    file = await LocalFiles(folder / "files", ledger).add("default", "lines.jsonl", "batch", LINE)
    batch = StoredBatch(OURS, "default", "/v1/responses", file.id, "1h", 100, status="posting", amount="5000")
    await ledger.put("batch", OURS, 100, "default", msgspec.json.encode(batch).decode())
    now = caller.served.trade.clock()
    await ledger.add_purchase(LedgerPurchase(OURS, now, "default", "batch", "demo/text", "demo/text", "d", None))
    await ledger.add_job(LedgerJob(OURS, OURS, now, 0, 5_000, Terms(250, 2_000)))


async def test_batch_whose_answer_was_lost_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    market = ServedMarket(spoken)
    tell, made = market.coordinator.tell, market_batch({"svc-serve": OURS})
    error = {"code": "expired", "message": "nobody claimed it"}
    line = {"id": "batch_req_x_1", "custom_id": None, "response": None, "error": error}
    line |= {"svc": {"job_id": None, "line": 1}}
    page = {"object": "list", "data": [made], "first_id": made["id"], "last_id": made["id"], "has_more": False}
    tell("GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337}))
    tell("POST /auth/session", Answer(200, {"token": "svc_sess_x", "expires_at": 9_999_999_999}))
    tell("GET /v1/batches", Answer(200, page))
    tell(f"GET /v1/batches/{made['id']}", Answer(200, made))
    tell("GET /v1/files/file-errors/content", Answer(200, msgspec.json.encode(line)))
    async with market.served(tmp_path) as caller:
        await left_behind(caller, tmp_path)
    async with market.served(tmp_path) as caller:
        ledger = caller.served.trade.ledger
        heard = (await caller.get(f"/v1/batches/{OURS}")).json
        while heard["status"] != "completed":
            await anyio.sleep(1)
            heard = (await caller.get(f"/v1/batches/{OURS}")).json
        errors = await caller.get(f"/v1/files/{heard['error_file_id']}/content")
        spent = await ledger.since(0)
    assert (heard["status"], heard["svc"]["batch_id"], heard["svc"]["cost"]) == ("completed", made["id"], "0")
    assert (errors.json["custom_id"], errors.json["error"]["code"]) == ("a", "batch_expired")
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]
    assert "POST /v1/batches" not in market.coordinator.routes()
