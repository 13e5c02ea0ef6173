"""Clients that retry until their job is posted, and the responses that they accept."""

from collections.abc import Sequence

import anyio
import attrs
import httpx

from tests.integration.coordinatord.scene.party import Body, Party

# Codes with which the specification lets a failing coordinator answer a submission.
_RETRYABLE = {"not_ready", "chain_unreachable", "relay_unavailable", "pinner_unavailable"}


@attrs.define
class Load:
    """`answers` holds status and error type or code of every response."""

    urls: Sequence[str]
    posted: set[bytes] = attrs.field(factory=set)
    answers: list[tuple[int, str | None]] = attrs.field(factory=list)
    _grown: anyio.Event = attrs.field(factory=anyio.Event)

    async def submit(self, bodies: Sequence[Body], first: int = 0) -> None:
        """Send each body repeatedly, rotating over the addresses, until it is posted."""
        async with httpx.AsyncClient(trust_env=False, timeout=70) as http:
            for body in bodies:
                turn = first
                while not await self._once(http, self.urls[turn % len(self.urls)], body):
                    turn += 1
                    await anyio.sleep(0.1)  # as a client does after a retryable error
                self.posted.add(bytes.fromhex(body["job_id"][2:]))
                self._grown.set()
                self._grown = anyio.Event()

    async def until_posted(self, count: int) -> None:
        while len(self.posted) < count:
            await self._grown.wait()

    async def _once(self, http: httpx.AsyncClient, url: str, body: Body) -> bool:
        try:
            answer = await http.post(f"{url}/v1/jobs", json=body)
        except httpx.TransportError:
            return False  # coordinator is down
        if answer.status_code == 201:
            self.answers.append((201, None))
            return True
        error = answer.json()["error"]
        if answer.status_code == 409:  # posted by a request whose response was lost
            self.answers.append((409, error["code"]))
            return error["code"] == "DuplicateJob"
        self.answers.append((answer.status_code, error["type"]))
        return False

    def unspecified(self) -> list[tuple[int, str | None]]:
        """Return responses that no client should have got."""
        return [(status, told) for status, told in self.answers if not _specified(status, told)]


def _specified(status: int, told: str | None) -> bool:
    match status:
        case 201:
            return True
        case 409:
            return told == "DuplicateJob"
        case 503:
            return told in _RETRYABLE
    return False


async def submissions(client: Party, count: int) -> list[Body]:
    """Return quoted and paid submissions."""
    return [await client.paid(client.container(f"payload {n}".encode())) for n in range(count)]
