"""A fake coordinator with chain and gateway that always has jobs: `python -m tests.bench.provider_stand_in PORT JOBS`.

It answers claims and settles at once, so that the provider is measured and not the chain. All jobs share one sealed
container. GET /stand-in returns its progress.
"""

import json
import secrets
import sys
import time
from typing import Any

import anyio
import attrs
import httpx
from hypercorn.asyncio import serve
from hypercorn.config import Config

from tests.support.fakes.market import CLAIMED, OPEN, Market
from tests.support.fakes.market_answers import Body, answer


@attrs.define
class EndlessMarket(Market):
    """Offer `left` more jobs, and drop ended ones."""

    left: int = 0
    settled: int = 0
    template: Body = attrs.field(factory=dict)

    def _poll(self, request: httpx.Request) -> httpx.Response:
        waiting = [row for row in self.jobs.values() if row["state"] == OPEN]
        more = min(self.left, int(request.url.params["free"]) - len(waiting))
        for _ in range(more):
            job = "0x" + secrets.token_hex(32)
            self.jobs[job] = {**self.template, "job_id": job}
            waiting.append(self.jobs[job])
        self.left -= max(0, more)
        return answer(200, {"jobs": waiting, "as_of_block": "1"})

    def _settle(self, request: httpx.Request) -> httpx.Response:
        settled = Market._settle(self, request)
        if settled.status_code == httpx.codes.CREATED:
            self.settled += 1
            job = json.loads(request.content)["job_id"]
            del self.jobs[job], self.results[job]
        return settled

    def progress(self) -> Body:
        held = sum(row["state"] == CLAIMED for row in self.jobs.values())
        return {"settled": self.settled, "held": held}


@attrs.frozen
class Application:
    market: EndlessMarket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path = scope["raw_path"].decode()
        if path == "/stand-in":
            response = answer(200, self.market.progress())
        else:
            host = "gateway" if path.startswith("/ipfs/") else "coordinator"
            query = scope["query_string"].decode()
            url = f"http://{host}{path.partition('?')[0]}{'?' + query if query else ''}"
            request = httpx.Request(scope["method"], url, content=body, headers=scope["headers"])
            response = await self.market.handle(request)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(response.content)).encode())]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.content})


def main(port: int, jobs: int) -> None:
    market = EndlessMarket(time.time, left=jobs, capacity=100_000)
    market.template = market.jobs.pop(market.post())
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.keep_alive_max_requests = 10**9
    config.loglevel = "warning"

    async def run() -> None:
        await serve(Application(market), config)  # type: ignore[arg-type] # its own type of applications

    anyio.run(run, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
