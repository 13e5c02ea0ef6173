"""The scripted market passes svcd as a provider, and fails it when its requests are changed on the way."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from common.box import PublicKey
from devnet.accounts import DevWallets
from devnet.ports import pick_free
from devnet.provider import key_variables, write_config
from tests.conformance.provider import ProviderTrial
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.serving import Handler, ServedReply, ServedRequest, serving
from tests.conformance.situations import ROUNDS, never_arose
from tests.conformance.verdicts import Report, tried


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def daemon(market: ProviderMarket, handler: Handler, wallets: DevWallets, directory: Path) -> AsyncIterator[None]:
    async with serving(handler) as url:
        config = write_config(
            directory, coordinator_url=url, gateway=url, address_book=market.book.as_json(), metrics_port=pick_free()
        )
        command = [sys.executable, "-m", "svcd", "run", "--config", str(config)]
        environment = {"PATH": os.environ["PATH"], **key_variables(wallets.demo_provider)}
        with (directory / "svcd.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stderr=log)  # noqa: ASYNC220 - returns at once
        try:
            yield
        finally:
            process.kill()
            process.wait()


async def test_svcd_is_right_in_every_situation(wallets: DevWallets, tmp_path: Path) -> None:
    market = ProviderMarket(box_key=PublicKey(wallets.demo_provider.box_key))
    async with daemon(market, market.handle, wallets, tmp_path):
        report = await ProviderTrial(market, Report(), patience=40, looked_on=1.0).run()
    wrong = [(tried(row), row.text) for row in report.wrong]
    assert wrong == []
    unchecked = [tried(row) for row in report.unknown]
    assert unchecked == ["set_identity", "uploads"]
    assert len(report.right) >= 35


def _signature_spoiled(request: ServedRequest) -> ServedRequest:
    """Change `completion_tok` after the provider has signed it."""
    if b'"settle"' not in request.body:
        return request
    body = json.loads(request.body)
    return attrs.evolve(request, body=json.dumps({**body, "completion_tok": body["completion_tok"] + 1}).encode())


async def test_each_broken_promise_is_found_by_its_row(wallets: DevWallets, tmp_path: Path) -> None:
    """Not the daemon's fault: its settles are changed on the way, and its fails never arrive."""
    market = ProviderMarket(box_key=PublicKey(wallets.demo_provider.box_key))
    [ordinary, _], [*many], _ = ROUNDS
    unsealed = next(each for each in many if each.tried == "container sealed to another key")

    async def spoiling(request: ServedRequest) -> ServedReply:
        if b'"fail"' in request.body:
            return ServedReply(404)
        return await market.handle(_signature_spoiled(request))

    async with daemon(market, spoiling, wallets, tmp_path):
        trial = ProviderTrial(market, Report(), patience=4, looked_on=0.1, rounds=[[ordinary, unsealed]])
        report = await trial.run()
    assert {tried(v) for v in report.wrong} == {"ordinary job", "container sealed to another key", "settles"}
    ordinary_row = next(v for v in report.rows if tried(v) == "ordinary job")
    assert ordinary_row.detail.startswith("claimed, not ended (sent: claim, settle")


async def test_what_no_poll_had_room_for_is_neither_right_nor_wrong(wallets: DevWallets, tmp_path: Path) -> None:
    market = ProviderMarket(box_key=PublicKey(wallets.demo_provider.box_key))
    [ordinary, _], [*many], _ = ROUNDS
    expired = next(each for each in many if each.tried == "order that has expired")

    async def without_room(request: ServedRequest) -> ServedReply:
        query = {**request.query, "free": "0"} if "free" in request.query else request.query
        return await market.handle(attrs.evolve(request, query=query))

    async with daemon(market, without_room, wallets, tmp_path):
        trial = ProviderTrial(market, Report(), patience=1, arrival=40, looked_on=0.1, rounds=[[ordinary, expired]])
        report = await trial.run()
    assert report.wrong == []
    unchecked = {tried(row): row.detail for row in report.unknown}
    assert unchecked.keys() >= {"ordinary job", "order that has expired", "claims", "results", "uploads"}
    assert unchecked["order that has expired"].startswith("never offered: its polls told of 0 free slots at most")


async def test_claim_that_was_never_sent_shows_nothing_of_its_refusal(wallets: DevWallets, tmp_path: Path) -> None:
    market = ProviderMarket(box_key=PublicKey(wallets.demo_provider.box_key))
    quicker = next(each for each in ROUNDS[1] if each.tried == "claim that another was quicker with")
    job = quicker.prepare(market, PublicKey(wallets.demo_provider.box_key))
    scripted = {key: len(queue) for key, queue in market.scripts.items()}
    market.offered[job] = 1
    assert never_arose(market, job, scripted) == "it sent no claim"
    market.scripts["claim", job].pop()
    assert never_arose(market, job, scripted) is None


async def test_provider_that_never_comes_is_wrong(wallets: DevWallets, tmp_path: Path) -> None:
    report = await ProviderTrial(ProviderMarket(), Report(), arrival=0.2).run()
    assert [(tried(v), v.detail) for v in report.wrong] == [("sign-in and first poll", "no session")]
