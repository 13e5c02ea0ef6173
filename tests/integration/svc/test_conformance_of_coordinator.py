"""The conformance runner passes a real coordinator, and fails a coordinator that breaks a promise."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from tests.conformance.coordinator import Trial, try_coordinator
from tests.conformance.verdicts import Report, tried
from tests.integration.coordinatord.scene.party import wallet_of
from tests.integration.svc.conftest import Shop
from tests.integration.svc.working_provider import WorkingProvider


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough, because only httpx differs."""
    return "asyncio"


async def test_our_coordinator_passes_including_purchases(shop: Shop, provider: WorkingProvider) -> None:
    buyer = wallet_of(shop.world.wallets.with_role("client")[1])
    async with (
        httpx.AsyncClient(base_url=shop.base_url, trust_env=False, timeout=30) as http,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(provider.work)
        trial = Trial(buyer, "demo/text-small", shop.gateway)
        report = await try_coordinator(http, trial, Report())
        tasks.cancel_scope.cancel()
    assert report.wrong == []
    unknown = {tried(row) for row in report.unknown}
    # The book is empty when the runner reads it. Jobs bought later are followed by their buyer.
    assert unknown <= {"both views of a job", "pages of GET /evm/jobs", "pages of GET /evm/allowlist"}
    names = [tried(row) for row in report.rows]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert len(names) > 150
    assert {"job that was bought", "result of the job that was bought", "output file"} <= set(names)


Spoil = Callable[[httpx.Request, httpx.Response], httpx.Response]


class _Spoiling(httpx.AsyncHTTPTransport):
    """The real coordinator with one broken promise."""

    def __init__(self, spoil: Spoil) -> None:
        super().__init__()
        self._spoil = spoil

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        await response.aread()
        return self._spoil(request, response)


def _changed(response: httpx.Response, change: Callable[[Any], None]) -> httpx.Response:
    body = response.json()
    change(body)
    headers = {n: v for n, v in response.headers.items() if n not in ("content-length", "transfer-encoding")}
    return httpx.Response(response.status_code, headers=headers, content=json.dumps(body).encode())


def _numbers_for_digits(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    if request.url.path != "/v1/models" or response.status_code != 200:
        return response
    return _changed(response, lambda body: body.update(as_of_block=int(body["as_of_block"])))


def _cap_of_another_price(_: httpx.Request, response: httpx.Response) -> httpx.Response:
    if response.status_code != 402 or "quote" not in response.json():
        return response
    return _changed(response, lambda body: body["quote"].update(cap=str(int(body["quote"]["cap"]) + 1)))


def _no_header_of_retries(_: httpx.Request, response: httpx.Response) -> httpx.Response:
    response.headers.pop("x-svc-retryable", None)
    return response


def _another_code(_: httpx.Request, response: httpx.Response) -> httpx.Response:
    if b"cap_overflow" not in response.content:
        return response
    return _changed(response, lambda body: body["error"].update(code="overflow"))


def _always_modified(_: httpx.Request, response: httpx.Response) -> httpx.Response:
    return httpx.Response(200, headers={"etag": '"1"'}, content=b"{}") if response.status_code == 304 else response


def _strangers_see_batches(request: httpx.Request, response: httpx.Response) -> httpx.Response:
    path = request.url.path
    if response.status_code == 404 and path.startswith("/v1/batches/"):
        return httpx.Response(200, headers=response.headers, content=b"{}")
    return response


_SPOILS = {
    _numbers_for_digits: {"GET /v1/models"},
    _cap_of_another_price: {"quote", "quote at the least price"},
    _no_header_of_retries: {"retryable header of every error of the run"},
    _another_code: {"cap beyond 128 bits"},
    _always_modified: {"if-none-match with the last ETag"},
    _strangers_see_batches: {"another's batch"},
}


async def test_each_broken_promise_is_found_by_its_row(shop: Shop) -> None:
    def spoil(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        for one in _SPOILS:
            response = one(request, response)
        return response

    transport = _Spoiling(spoil)
    async with httpx.AsyncClient(base_url=shop.base_url, transport=transport, trust_env=False, timeout=30) as http:
        report = await try_coordinator(http, Trial(), Report())
    wrong = {tried(row) for row in report.wrong}
    assert set.union(*_SPOILS.values()) <= wrong
    # An error without its header also fails the row of that error.
    assert "job id that is none" in wrong
    assert "GET /healthz" not in wrong


async def test_what_is_no_coordinator_is_wrong_from_the_first_row() -> None:
    async with httpx.AsyncClient(base_url="http://127.0.0.1:9", trust_env=False, timeout=5) as http:
        report = await try_coordinator(http, Trial(), Report())
    assert report.rows[0].detail == "no answer (ConnectError)"
    assert not report.holds
    assert "everything that is signed" in map(tried, report.unknown)
