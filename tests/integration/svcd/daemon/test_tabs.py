"""Tabs of the real daemon, through the mailbox of a real coordinator and over its own endpoint."""

import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import attrs
import httpx
import pytest

from common.box import SecretKey
from common.secp256k1 import Wallet
from common.tab.messages import TabClose
from common.tab.terms import first_chain_hash
from svc.wire.tabs import TabRoutes, bearer_caller
from svc.wire.transport import ApiError, ConnectionFailed, RetryPolicy, Transport
from svcd.base.clock import Clock
from svcd.tabs.certificate import client_context
from tests.integration.svcd.daemon.scene import Scene, terminated
from tests.integration.svcd.tabs.certificates import settings_for
from tests.support.fakes.tabs import CAP, TabTalker

T = TypeVar("T")


@attrs.frozen
class Seller:
    owner: Wallet
    provider_id: int
    box: SecretKey


class HttpMailbox:
    """Mailbox of an owner over the routes of tabs."""

    def __init__(self, routes: TabRoutes) -> None:
        self.routes = routes
        self._incoming: deque[bytes] = deque()
        self._outgoing: deque[tuple[bytes, bytes]] = deque()
        self._changed = anyio.Event()

    def put(self, job_id: bytes, frame: bytes) -> None:
        self._outgoing.append((job_id, frame))
        self._notify()

    async def take(self, job_id: bytes) -> bytes:
        while not self._incoming:
            await self._changed.wait()
        return self._incoming.popleft()

    async def post(self) -> None:
        while True:
            while self._outgoing:
                frames = list(self._outgoing)
                self._outgoing.clear()
                await self.routes.post(frames)
            await self._changed.wait()

    async def read(self, job_id: bytes) -> None:
        while True:
            try:
                async with self.routes.frames(job_id) as frames:
                    async for frame in frames:
                        self._incoming.append(frame)
                        self._notify()
            except (ApiError, ConnectionFailed):
                pass
            await anyio.sleep(0.1)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@asynccontextmanager
async def talking(
    scene: Scene, routes: TabRoutes, owner: TabTalker[Seller] | None = None
) -> AsyncIterator[TabTalker[Seller]]:
    """Post a tab, or continue one, and talk over these routes."""
    account = scene.world.wallets.demo_provider
    mailbox = HttpMailbox(routes)
    if owner is None:
        provider_id = scene.world.market.provider_ids[account.address]
        seller = Seller(scene.client.wallet, provider_id, SecretKey(account.box_secret))
        owner = TabTalker(seller, mailbox, book=scene.book, delegated_until=2**40)
        plaintext = scene.envelope(owner.terms().model_input())
        owner.job = await scene.post(plaintext=plaintext, units_in=1, units_out=CAP)
        owner.chain = first_chain_hash(owner.job_id)
    owner.mailbox = mailbox
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.post)
        tasks.start_soon(mailbox.read, owner.job_id)
        yield owner
        tasks.cancel_scope.cancel()


def mailbox_of(scene: Scene) -> TabRoutes:
    async def authorised(send: Callable[[dict[str, str]], Awaitable[T]], /) -> T:
        return await send(scene.client.authorization)

    transport = Transport(scene.client.http, Clock(), RetryPolicy(max_retries=3))
    return TabRoutes(transport, authorised)


@pytest.mark.long
async def test_tab_in_the_mailbox_survives_kill_9(scene: Scene) -> None:
    await scene.client.sign_in()
    async with talking(scene, mailbox_of(scene)) as owner:
        with scene.daemon() as process:
            await owner.connect()
            assert await owner.ask(1, "first") == {"input": "first", "max_tokens": 50}
            owner.request(2, {"input": "second"})
            await owner.until_answered(2)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with scene.daemon() as process:
            welcome = await owner.connect()
            assert (welcome.acknowledged, welcome.answered_ids) == (owner.charged, (2,))
            owner.acknowledge(2)
            await owner.ask(3, "third")
            owner.send(TabClose())
            row = await scene.ended(owner.job)
            assert row["status"] == "completed", scene.log
            transcript = owner.checked((await scene.opened(row)).output, int(row["svc"]["completion_tok"]))
            assert [exchange.id for exchange in transcript.exchanges] == [1, 2, 3]
            assert transcript.closing_reason == "close"
            assert scene.runs == [f"{owner.job}-{number}" for number in (1, 2, 3)]
            assert await terminated(process) == 0


@pytest.mark.long
async def test_tab_over_the_direct_endpoint(scene: Scene) -> None:
    await scene.client.sign_in()
    direct = settings_for(scene.directory)
    host, port = direct.listen
    with scene.config.open("a") as config:
        config.write(
            f'\n[tabs]\nlisten = "{host}:{port}"\nurl = "{direct.url}"\ncertificate = "{direct.certificate}"\n'
            f'private_key = "{direct.private_key}"\n'
        )
    with scene.daemon():
        async with talking(scene, mailbox_of(scene)) as owner:
            endpoint = (await owner.connect()).direct
        assert endpoint is not None
        checked = await scene.run("check")
        assert "right    direct endpoint" in checked.stdout, checked.stdout
        async with httpx.AsyncClient(base_url=endpoint.url, verify=client_context(endpoint.certificate)) as http:
            routes = TabRoutes(Transport(http, Clock(), RetryPolicy(max_retries=0)), bearer_caller(endpoint.token))
            async with talking(scene, routes, owner):
                await owner.connect()
                for number in range(1, 4):
                    await owner.ask(number, f"word {number}")
                owner.send(TabClose())
                row = await scene.ended(owner.job)
        assert (
            owner.checked((await scene.opened(row)).output, int(row["svc"]["completion_tok"])).closing_reason == "close"
        )
