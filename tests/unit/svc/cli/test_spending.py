"""Spending: payments above a ceiling require confirmation, and `svc spend` over a ledger."""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path

import anyio
import click
import pytest
from click.testing import CliRunner

from common.quotes import FeeTerms
from svc.cli.ceiling import pay_within_ceiling
from svc.cli.commands import spend
from svc.cli.output import Output
from svc.core.money import Token, order_ceiling
from svc.errors import OverCeiling
from svc.serve.ledger import Ledger, LedgerJob, LedgerPurchase

_TOKEN = Token("Dol\x1blar", 6, decimals_verified=True)
_PRICE = 2_500_000


def _paying(tried: list[int | None]) -> Callable[[int | None], Awaitable[str]]:
    async def pay(most: int | None) -> str:
        tried.append(most)
        order_ceiling(_TOKEN, most, None).check(_PRICE, "the order")
        return "paid"

    return pay


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal with a user who confirms. Return the questions."""
    questions: list[str] = []

    def confirm(question: str, *, err: bool) -> bool:
        assert err  # standard output has only results
        questions.append(question)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    return questions


def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply within the test's body, because pytest replaces the streams between a fixture and its test."""
    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(sys, "stderr", _Terminal())


def _output(*, as_json: bool = False) -> Output:
    return Output(as_json=as_json, quiet=False, out=StringIO(), err=StringIO())


async def test_confirmed_amount_is_the_maximum_paid(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _watched(monkeypatch)
    tried: list[int | None] = []
    assert await pay_within_ceiling(_output(), None, None, _paying(tried)) == "paid"
    assert tried == [None, _PRICE]
    (question,) = asked
    assert question.startswith("the order costs up to 2.5 Dol\\x1blar (2500000 base units), above the default ceiling")


async def test_refusal_pays_nothing(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _watched(monkeypatch)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: False)
    tried: list[int | None] = []
    with pytest.raises(OverCeiling):
        await pay_within_ceiling(_output(), None, None, _paying(tried))
    assert tried == [None]


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
async def test_refused_without_a_terminal(asked: list[str], stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _watched(monkeypatch)
    monkeypatch.setattr(sys, stream, StringIO())
    with pytest.raises(OverCeiling):
        await pay_within_ceiling(_output(), None, None, _paying([]))
    assert asked == []


async def test_set_ceiling_and_json_never_ask(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _watched(monkeypatch)
    for output, most in ((_output(), 2_000_000), (_output(as_json=True), None)):
        with pytest.raises(OverCeiling):
            await pay_within_ceiling(output, None, most, _paying([]))
    assert asked == []


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
