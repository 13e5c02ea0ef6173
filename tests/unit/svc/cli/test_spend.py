"""`svc spend` over a ledger in a folder."""

import json
import time
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from common.quotes import FeeTerms
from svc.cli.commands import spend
from svc.serve.ledger import Ledger, LedgerJob, LedgerPurchase

DAY = 86_400
NOON = 20_000 * DAY + DAY // 2


async def _add_job(folder: Path, name: str, at: float) -> None:
    ledger = Ledger.open(folder)
    try:
        purchase = LedgerPurchase(name, at, "key", "chat", "model", "m", name, None, "done")
        job = LedgerJob("0x" + name * 32, name, at, 7, 5, FeeTerms(0, 0))
        await ledger.add_purchase(purchase, job)
        await ledger.record_job_end(job.job_id, "done", 5)
    finally:
        ledger.close()


@pytest.mark.parametrize(("days", "jobs"), [(1, 1), (2, 2)])
def test_days_are_utc_days_and_include_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, jobs: int
) -> None:
    anyio.run(_add_job, tmp_path, "aa", NOON)
    anyio.run(_add_job, tmp_path, "bb", NOON - DAY // 2 - 1)  # the last second of yesterday
    monkeypatch.setattr(time, "time", lambda: NOON + 60.0)
    run = CliRunner().invoke(
        spend.spend, ["--state", str(tmp_path), "--days", str(days), "--by", "model", "--json"], standalone_mode=False
    )
    assert [row["jobs"] for row in json.loads(run.output)] == [jobs]
