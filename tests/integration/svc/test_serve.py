"""The listening `svc serve`: TLS from files, two hundred concurrent callers, a broken connection."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import httpx
import openai
import pytest

from common.refusal import Refused
from svc.serve import serving
from svc.serve.settings import BudgetSettings, HttpServerSettings, KeySettings, ServeSettings
from tests.unit.svc.fake_coordinator import Answer, provider, until
from tests.unit.svc.serve.conftest import spoken
from tests.unit.svc.serve.market import GATEWAY, ServedMarket, candidate

PEM: Final = str(Path(__file__).with_name("loopback.pem"))
HELLO: Final[dict[str, Any]] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}
SECRET: Final = "sk-of-the-tests-0123"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the loop of hypercorn


@attrs.frozen
class Listening:
    base_url: str
    market: ServedMarket
    served: serving.LocalServer


@asynccontextmanager
async def listening(market: ServedMarket, folder: Path, **server: Any) -> AsyncIterator[Listening]:
    (folder / "key").write_text(SECRET)
    settings = ServeSettings(
        server=HttpServerSettings(port=0, **server),
        keys={"tests": KeySettings(file=str(folder / "key"))},
        budget=BudgetSettings(per_day=10**12),
        tabs="off",
    )
    serving.check_tls(settings.server)
    stop = anyio.Event()
    with serving.listening_socket(settings.server) as listener:
        port = listener.getsockname()[1]
        client = market.coordinator.client(gateways=GATEWAY)
        opened = serving.open_server(client, settings, folder, port, pytest.fail)
        async with opened as served, anyio.create_task_group() as tasks:
            tasks.start_soon(serving.serve_until, served, listener, settings, stop.wait)
            yield Listening(serving.base_url(settings.server, port), market, served)
            stop.set()


async def test_openai_client_uses_tls_with_a_custom_certificate(tmp_path: Path) -> None:
    trusted = ssl.create_default_context(cafile=PEM)
    async with listening(ServedMarket(spoken), tmp_path, tls_certificate=PEM, tls_key=PEM) as up:
        assert up.base_url.startswith("https://127.0.0.1:")
        async with openai.AsyncOpenAI(
            base_url=up.base_url, api_key=SECRET, max_retries=0, http_client=httpx.AsyncClient(verify=trusted)
        ) as client:
            whole = await client.chat.completions.create(**HELLO)
            stream = await client.chat.completions.create(**HELLO, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert whole.choices[0].message.content == text == "you said: hello"
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get(f"{up.base_url}/models")
            with pytest.raises(httpx.RemoteProtocolError):  # plain HTTP gets no response
                await stranger.get(f"{up.base_url.replace('https', 'http')}/models")


@pytest.mark.parametrize("certificate", ["none.pem", "text.pem"])
async def test_unusable_tls_files_are_refused_at_start(certificate: str, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    path = str(tmp_path / certificate)
    with pytest.raises(Refused, match=r"server\.tls_certificate"):
        async with listening(ServedMarket(spoken), tmp_path, tls_certificate=path, tls_key=PEM):
            pytest.fail("it listens")


@pytest.mark.long
async def test_two_hundred_callers_share_several_providers(tmp_path: Path) -> None:
    market = ServedMarket(spoken, candidates=[candidate(number, 100 + number) for number in (7, 8, 9)])
    for number in (7, 8, 9):
        told = provider(provider_id=str(number), capacity="5")
        market.coordinator.tell(f"GET /evm/providers/{number}", Answer(200, told))
    heard: list[httpx.Response] = []
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        said = [{"role": "user", "content": f"{number}"}]
        heard.append(await client.post("chat/completions", json={**HELLO, "messages": said}, headers=headers))

    headers = {"authorization": f"Bearer {SECRET}"}
    async with (
        listening(market, tmp_path) as up,
        httpx.AsyncClient(base_url=up.base_url, limits=limits, timeout=120) as client,
        anyio.create_task_group() as tasks,
    ):
        for number in range(200):
            tasks.start_soon(ask, client, number)
    assert [answer.status_code for answer in heard] == [200] * 200
    assert len({answer.json()["svc"]["job_id"] for answer in heard}) == 200
    assert {answer.json()["choices"][0]["message"]["content"] for answer in heard} == {
        f"you said: {number}" for number in range(200)
    }
    given = [sum(job.provider == number for job in market.jobs.values()) for number in (7, 8, 9)]
    assert min(given) > 0  # each has room for five jobs, and further jobs go to the next


@pytest.mark.parametrize("stream", [False, True])
async def test_connection_that_breaks_takes_an_unclaimed_job_back(stream: bool, tmp_path: Path) -> None:
    market = ServedMarket(spoken, steps={7: ("queued",)})
    async with listening(market, tmp_path) as up:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(base_url=up.base_url) as client:
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:

                    async def ask() -> None:
                        await client.post("chat/completions", json={**HELLO, "stream": stream}, headers=headers)

                    tasks.start_soon(ask)
                    await until(lambda: bool(market.jobs))
                    tasks.cancel_scope.cancel()
                (job,) = market.jobs.values()
                await until(lambda: job.steps == ["cancelled"])
                while [spent.state for spent in await up.served.context.ledger.list_jobs_since(0)] != ["unpaid"]:  # noqa: ASYNC110 - a file does not tell
                    await anyio.sleep(0.05)
