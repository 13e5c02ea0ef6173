"""Check that each gateway serves the container of the newest job."""

from typing import Final

import httpx

from common.checks import CheckRow, fact, right, unknown, wrong
from svc.client import Client
from svc.errors import SvcError
from svc.wire.answers import opened

TIMEOUT_S: Final = 10.0
_OK: Final = 200


async def check_gateways(client: Client, http: httpx.AsyncClient) -> list[CheckRow]:
    urls = client.settings.gateways
    if not urls:
        remedy = "set SVC_PIN_GATEWAY or --gateway to read results"
        return [fact("gateway", "none is set, so results cannot be read", remedy)]
    try:
        newest = await client.jobs.book(order="newest", limit=1)
    except SvcError:  # the coordinator's own check reports the error
        newest = []
    cid = newest[0].task_cid if newest else None
    return [await _check_gateway(http, url, cid) for url in urls]


async def _check_gateway(http: httpx.AsyncClient, url: str, cid: str | None) -> CheckRow:
    try:
        async with opened(http, "GET", url if cid is None else f"{url}/ipfs/{cid}", timeout=TIMEOUT_S) as answer:
            status = answer.status_code
    except httpx.RequestError as error:
        seen = f"{url} is unreachable: {error or type(error).__name__}"
        return wrong("gateway", seen, "try another with SVC_PIN_GATEWAY or --gateway")
    if cid is None:
        return unknown("gateway", f"{url} answers; there is no job yet to test it with", "check again later")
    if status == _OK:
        return right("gateway", f"{url} serves the newest job")
    seen = f"{url} answers {status} for {cid}, the newest job's container"
    return wrong("gateway", seen, "it may not serve this market's store: try another with SVC_PIN_GATEWAY")
