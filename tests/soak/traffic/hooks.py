"""Webhooks of the buyers' wallets: every event and every end of a batch is posted, signed, at least once."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import anyio
import asyncpg
import attrs
from aiohttp import web

from common.refusal import Refused
from common.scalars import hex_of
from devnet.ports import LOOPBACK
from svc.errors import SvcError
from svc.webhooks import verify_webhook
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer

_DELIVERED_WITHIN_S: Final = 100.0  # a process that dies with a webhook's turn keeps other processes out for a minute
_ADDED_WITHIN_S: Final = 60.0
_UNSENT: Final = (
    "select (select count(*) from webhook_messages) + (select count(*) from batches where reported"
    "  < num_nonnulls(in_progress_at, cancelling_at, failed_at, completed_at, expired_at, cancelled_at))"
    " + (select count(*) from events e, webhook_position p where e.id > p.event_id)"
)
_EVENTS: Final = "select id from events where owner = $1 and id > $2"
_BATCHES: Final = (
    "select id, case when failed_at is not null then 'failed' when completed_at is not null then 'completed'"
    " when expired_at is not null then 'expired' else 'cancelled' end as status from batches where owner = $1"
    " and coalesce(failed_at, completed_at, expired_at, cancelled_at) > $2"
)
_DROPPED: Final = "select sum(dropped) from webhooks where owner = $1"


@attrs.frozen
class Got:
    headers: dict[str, str]
    body: bytes


@attrs.define
class Receiver:
    """Keep the messages that are posted to each address, by their id. Answer 200 at once."""

    url: str = ""
    inboxes: dict[str, dict[str, Got]] = attrs.field(factory=dict)
    posts: int = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Got(headers, await request.read())
        self.posts += 1
        self.inboxes.setdefault(request.path.removeprefix("/"), {})[headers.get("webhook-id", "")] = got
        return web.Response()

    def got_at(self, address: str) -> dict[str, Got]:
        return self.inboxes.get(address, {})


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    runner = web.ServerRunner(web.Server(receiver.handle, access_log=None))  # type: ignore[arg-type] # answers any request
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        receiver.url = f"http://{LOOPBACK}:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()


@attrs.frozen
class Hook:
    """Endpoint of one wallet. Only events after `after`, and batches that ended after `since`, remain to be checked."""

    id: str
    secret: str
    owner: bytes
    after: int
    since: datetime


@attrs.define
class HookWork:
    receiver: Receiver
    timeline: Timeline
    hooks: dict[str, Hook] = attrs.field(factory=dict)  # by the owner's address

    async def add(self, buyer: Buyer) -> None:
        """Add the endpoint of the buyer's wallet, before the first fault."""
        connection = await asyncpg.connect(buyer.ground.database_url)
        try:
            newest, now = await _position(connection)
        finally:
            await connection.close()
        address = buyer.wallet.address.lower()
        async with buyer.anywhere() as client:
            added = await client.webhooks.add(f"{self.receiver.url}/{address}")
        self.hooks[address] = Hook(added.id, added.secret, bytes.fromhex(address[2:]), newest, now)

    async def tested(self, buyer: Buyer) -> str:
        """Order a test message, and wait until it is delivered."""
        hook = self.hooks[buyer.wallet.address.lower()]
        buyer.doing = "ordering a test message"
        async with buyer.anywhere() as client:
            message_id = await client.webhooks.test(hook.id)
        buyer.doing = f"waiting for message {message_id}"
        with anyio.move_on_after(_DELIVERED_WITHIN_S):
            while message_id not in self.receiver.got_at(hex_of(hook.owner)):  # noqa: ASYNC110 - no event of one message
                await anyio.sleep(0.1)
            return "delivered"
        return "not delivered"

    async def undelivered(self, database_url: str, patience: float) -> list[str]:
        """Wait until no message is queued. Return events and ends of batches that were not posted, and messages with a
        wrong signature. The next call checks only newer ones."""
        connection = await asyncpg.connect(database_url)
        try:
            with anyio.move_on_after(patience):
                while await connection.fetchval(_UNSENT):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.25)
            if waiting := await connection.fetchval(_UNSENT):
                return [f"I1: {waiting} messages still wait for webhooks {patience:g} s after the last fault"]
            newest, now = await _position(connection)
            found = [line for hook in self.hooks.values() for line in await self._undelivered(connection, hook)]
            self.hooks = {owner: attrs.evolve(hook, after=newest, since=now) for owner, hook in self.hooks.items()}
            self.receiver.inboxes.clear()
            return found
        finally:
            await connection.close()

    async def _undelivered(self, connection: "asyncpg.Connection[asyncpg.Record]", hook: Hook) -> list[str]:
        name, reset = f"webhook of {hex_of(hook.owner)}", hook.after
        found: list[str] = []
        events: set[int] = set()
        batches: set[tuple[str, str]] = set()
        for message in self._messages(hook, found):
            data = message["data"]
            if message["type"].startswith("job."):
                events.add(int(data["id"]))
            elif message["type"].startswith("batch."):
                batches.add((data["id"], data["status"]))
            elif message["type"] == "events.reset":
                reset = max(reset, int(data["id"]))
        logged = {row["id"] for row in await connection.fetch(_EVENTS, hook.owner, hook.after)}
        if missing := {each for each in logged if each > reset} - events:
            found.append(f"I1: {len(missing)} events were not posted to the {name}: {sorted(missing)[:5]}")
        if extra := {each for each in events if each > reset} - logged:
            found.append(f"I1: events that are not in the log were posted to the {name}: {sorted(extra)[:5]}")
        ended = {(row["id"], row["status"]) for row in await connection.fetch(_BATCHES, hook.owner, hook.since)}
        if missing_ends := ended - batches:
            found.append(f"I1: ends of batches were not posted to the {name}: {sorted(missing_ends)[:5]}")
        if dropped := await connection.fetchval(_DROPPED, hook.owner):
            found.append(f"I1: {dropped} messages to the {name} were dropped")
        return found

    def _messages(self, hook: Hook, found: list[str]) -> list[dict[str, Any]]:
        """Return the messages that the endpoint received. Add wrong signatures to `found`. Any timestamp is accepted,
        because a coordinator's clock may be shifted."""
        messages = []
        for message_id, got in self.receiver.got_at(hex_of(hook.owner)).items():
            try:
                verify_webhook(hook.secret, got.headers, got.body, now=float(got.headers["webhook-timestamp"]))
            except Refused as refused:
                found.append(f"I1: a webhook message {message_id} has a wrong signature: {refused}")
            messages.append(json.loads(got.body))
        return messages


async def _position(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, datetime]:
    row = await connection.fetchrow("select max(id), clock_timestamp() from events")
    assert row is not None
    return row[0], row[1]


async def add_hooks(hooks: HookWork, buyers: Sequence[Buyer]) -> None:
    """Add an endpoint for each wallet. A wallet's tokens may not be indexed yet."""
    for buyer in buyers:
        until = time.monotonic() + _ADDED_WITHIN_S
        while True:
            try:
                await hooks.add(buyer)
                break
            except SvcError:
                if time.monotonic() > until:
                    raise
                await anyio.sleep(0.5)
