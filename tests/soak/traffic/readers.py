"""Readers of the catalogue, the book, the asks and the providers, and idle connections."""

from itertools import count
from random import Random
from typing import Any, Final

import attrs
import httpx

from common.domains import Domains
from devnet.accounts import DevWallet
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.soak.answering import counted, plain_http
from tests.soak.ground import Ground
from tests.soak.programs import SLA_SECONDS
from tests.soak.timeline import Timeline

_PATHS: Final = (
    "/v1/models",
    "/evm/jobs?limit=20&order=newest",
    "/evm/jobs?state=Settled&limit=1000",
    "/evm/jobs/summary?owner={client}",
    "/evm/asks",
    "/evm/asks/floors",
    "/evm/providers",
    "/evm/allowlist",
    "/evm/chain",
)


@attrs.frozen
class Reader:
    """`as_of_block` may decrease only as far as a reorg goes. A larger decrease is the only sign of a coordinator that
    answers from an outdated index."""

    ground: Ground
    timeline: Timeline
    etags: dict[str, str] = attrs.field(factory=dict)

    async def look(self, n: int) -> str:
        base_url = self.ground.base_urls[n % len(self.ground.base_urls)]
        client = self.ground.wallets.with_role("client")[0].address
        path = _PATHS[n % len(_PATHS)].format(client=client)
        headers = {"if-none-match": self.etags[path]} if path in self.etags else {}
        async with plain_http(base_url) as http:
            answer = await http.get(path, headers=headers)
        if "etag" in answer.headers:
            self.etags[path] = answer.headers["etag"]
        return counted(answer, self.timeline, {200, 304})


_CLAIM_SHARE: Final = 0.5  # of the polls that returned jobs
_SINGLE_OWNER_SHARE: Final = 0.5  # of the polls
_MODEL: Final = 1


@attrs.define
class NonDeliveringProvider:
    """Registered provider without a daemon. Polls for jobs and claims some, but never settles them."""

    ground: Ground
    timeline: Timeline
    wallet: DevWallet
    random: Random
    _token: str = ""
    _polls: "count[int]" = attrs.field(factory=count)

    async def poll(self, _n: int) -> str:
        """Poll once, and sometimes claim a job. Return the outcome for the run's counts."""
        urls = self.ground.base_urls
        async with plain_http(urls[next(self._polls) % len(urls)], timeout=90) as http:
            party = self._party(http)
            if not self._token and (failure := await self._sign_in(party, http)) is not None:
                return failure
            query: dict[str, str | int] = {
                "state": "Open",
                "model": _MODEL,
                "free": self.random.randint(1, 3),
                "limit": 10,
            }
            if self.random.random() < _SINGLE_OWNER_SHARE:
                # Without this filter the oldest jobs are returned, and those are jobs of batches with windows of an
                # hour.
                query["owner"] = self.ground.wallets.with_role("client")[0].address
            polled = await http.get("/evm/jobs", params=query, headers=party.authorization)
            jobs: list[dict[str, Any]] = polled.json()["jobs"] if polled.status_code == 200 else []
            # Claim only jobs with short windows. Others would still be claimed when the run ends.
            short_window_jobs = [job["job_id"] for job in jobs if int(job["sla_secs"]) == SLA_SECONDS]
            if not short_window_jobs or self.random.random() > _CLAIM_SHARE:
                return f"{counted(polled, self.timeline, {200})} {'held' if jobs else 'nothing'}"
            claimed = await party.run(party.claim(short_window_jobs[0]))
            return f"claim {counted(claimed, self.timeline, {201, 409, 504})}"

    async def _sign_in(self, party: Party, http: httpx.AsyncClient) -> str | None:
        """Open a session. Return the outcome if this fails."""
        answer = await http.get("/auth/nonce", params={"address": party.address})
        if answer.status_code == 200:
            answer = await http.post("/auth/session", json=party.answer_to(answer.json()["nonce"], role="provider"))
        if answer.status_code != 200:
            return f"sign in {counted(answer, self.timeline, {200})}"
        self._token = party.token = answer.json()["token"]
        return None

    def _party(self, http: httpx.AsyncClient) -> Party:
        book = self.ground.book
        domains = Domains.of(book)
        return Party(wallet_of(self.wallet), domains, book.job_registry, http, self.wallet.box_key, self._token)
