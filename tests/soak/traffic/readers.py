"""Readers of the catalogue, the book, the asks and the providers, also with conditional requests."""

from typing import Final

import attrs

from tests.soak.ground import Ground
from tests.soak.plain_http import plain_http
from tests.soak.timeline import Timeline
from tests.soak.traffic.answers import counted

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
