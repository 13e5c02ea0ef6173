"""Event streams, and tabs.

A stream is read for a few seconds at one coordinator, then resumed at another. At the end of a round, each reader must
have every event of the log that came after its first, once and in order. A `reset` means that events are missing, and
starts a new part of the reader's history.
"""

import json
from collections.abc import AsyncIterator
from typing import Final

import anyio
import asyncpg
import attrs
import httpx

from devnet.catalogue import MODELS
from svc.errors import TabFaulty
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab
from tests.soak.answering import counted, plain_http
from tests.soak.programs import SLA_SECONDS
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer
from tests.soak.traffic.work import Work, new_question

_READ_SECONDS: Final = (1.0, 6.0)
_QUIET_SECONDS: Final = 30.0  # limit of silence; heartbeats come about every 20
_LOGGED: Final = "select id from events where id > $1 and id <= $2"


@attrs.define
class Part:
    """Consecutive events of one reader."""

    after: int
    last: int
    heard: set[int] = attrs.field(factory=set)


@attrs.define
class StreamWork:
    timeline: Timeline
    histories: dict[object, list[Part]] = attrs.field(factory=dict)  # by reader
    heard: int = 0

    async def followed(self, buyer: Buyer) -> str:
        """Read one stream. It ends well when the reader leaves."""
        parts = self.histories.setdefault(buyer.name, [])
        headers = {"last-event-id": str(parts[-1].last)} if parts else {}
        base_url = buyer.random.choice(buyer.ground.base_urls)
        buyer.doing = f"reading events after {headers.get('last-event-id')}"
        with anyio.move_on_after(buyer.random.uniform(*_READ_SECONDS)):
            async with (
                plain_http(base_url, timeout=_QUIET_SECONDS) as http,
                http.stream("GET", "/evm/events", headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    await answer.aread()
                    return counted(answer, self.timeline, {200})
                async for event_id, name in messages(answer):
                    self.take(parts, event_id, name)
                return "stream ended"
        return "followed" if parts else "no answer"

    def take(self, parts: list[Part], event_id: int, name: str | None) -> None:
        """Add a message to a history. `name` is None for the opening message, which has only an id."""
        if not parts or name == "reset":
            parts.append(Part(event_id, event_id))
        elif name is not None:
            part = parts[-1]
            if event_id <= part.last:
                self.timeline.complain(f"I1: a stream delivered event {event_id} after event {part.last}")
            part.last = max(part.last, event_id)
            part.heard.add(event_id)
            self.heard += 1

    async def missed_events(self, database_url: str) -> list[str]:
        """Return events of the log that a reader missed, and delivered events that are not in the log. Keep
        only the position of each reader."""
        connection = await asyncpg.connect(database_url)
        found: list[str] = []
        try:
            for part in (part for parts in self.histories.values() for part in parts):
                logged = {row["id"] for row in await connection.fetch(_LOGGED, part.after, part.last)}
                if missing := logged - part.heard:
                    found.append(f"I1: a stream missed {len(missing)} events after {part.after}: {sorted(missing)[:5]}")
                if extra := part.heard - logged:
                    found.append(f"I1: a stream delivered events that are not in the log: {sorted(extra)[:5]}")
        finally:
            await connection.close()
        for parts in self.histories.values():
            parts[:] = [Part(parts[-1].last, parts[-1].last)] if parts else []
        return found


async def messages(answer: httpx.Response) -> AsyncIterator[tuple[int, str | None]]:
    """Yield id and event of each message. The opening message has only an id."""
    event_id = 0
    name: str | None = None
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "id":
            event_id = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            json.loads(value)
        elif not line and event_id:
            yield event_id, name
            event_id, name = 0, None


_MAX_REQUESTS: Final = 5


@attrs.frozen
class TabWork:
    work: Work
    timeline: Timeline

    async def tab(self, buyer: Buyer) -> str:
        """Open a tab, send some requests, and close it. Its provider may charge only the acknowledged answers."""
        buyer.doing = "opening a tab"
        requests = buyer.random.randint(1, _MAX_REQUESTS)
        try:
            async with (
                buyer.anywhere() as client,
                client.tabs.open(MODELS[0].name, window=f"{SLA_SECONDS}s", requests=_MAX_REQUESTS) as tab,
            ):
                buyer.doing = f"asking in tab {tab.id}"
                for _ in range(requests):
                    await self._ask(tab)
                buyer.doing = f"settling tab {tab.id}"
        except TabFaulty as faulty:
            self.timeline.complain(f"I5: {faulty.message}")
            return str(faulty.code)
        if tab.outcome is None:
            raise AssertionError("a tab that is closed has an outcome")
        return self._ended(tab, tab.outcome, requests)

    async def _ask(self, tab: Tab) -> None:
        question = new_question()
        reply = await (await tab.request(question)).answer()
        if question not in str(reply.output):
            self.timeline.complain(f"request {reply.id} of tab {tab.id} answers something else")

    def _ended(self, tab: Tab, outcome: TabOutcome, requests: int) -> str:
        if outcome.job.status != "completed":
            return outcome.job.status
        self.work.promise(tab.file.job_id)
        if outcome.fault is not None:
            self.timeline.complain(f"I5: the settle of tab {tab.id} is wrong: {outcome.fault}")
        if outcome.requests > requests or outcome.cost + outcome.returned != tab.file.amount:
            self.timeline.complain(f"I5: tab {tab.id} of {requests} requests and {tab.file.amount} ended as {outcome}")
        return "settled" if outcome.requests == requests else "settled without the last acks"
