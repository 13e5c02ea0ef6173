"""Check that each gateway serves the container of the newest job."""

from typing import Final

import httpx

from common.checks import CheckRow, fact, right, unknown, wrong
from svc.client import Client
from svc.errors import SvcError
from svc.wire.answers import open_response

GATEWAY_TIMEOUT_S: Final = 10.0
_STATUS_OK: Final = 200


async def check_gateways(client: Client, http: httpx.AsyncClient) -> list[CheckRow]:
    urls = client.settings.gateways
    if not urls:
        remedy = "set SVC_PIN_GATEWAY or --gateway to read results"
        return [fact("gateway", "no gateway is set, so results cannot be read", remedy)]
    try:
        newest = await client.jobs.book(order="newest", limit=1)
    except SvcError:  # the coordinator's own check reports the error
        newest = []
    cid = newest[0].task_cid if newest else None
    return [await _check_gateway(http, url, cid) for url in urls]


async def _check_gateway(http: httpx.AsyncClient, url: str, cid: str | None) -> CheckRow:
    try:
        async with open_response(
            http, "GET", url if cid is None else f"{url}/ipfs/{cid}", timeout=GATEWAY_TIMEOUT_S
        ) as answer:
            status = answer.status_code
    except httpx.RequestError as error:
        detail = f"{url} is unreachable: {error or type(error).__name__}"
        return wrong("gateway", detail, "try another gateway with SVC_PIN_GATEWAY or --gateway")
    if cid is None:
        return unknown("gateway", f"{url} answers; there is no job yet to test it with", "check again later")
    if status == _STATUS_OK:
        return right("gateway", f"{url} serves the newest job")
    detail = f"{url} answers {status} for {cid}, the newest job's container"
    remedy = "this gateway may not serve the market's store: try another gateway with SVC_PIN_GATEWAY or --gateway"
    return wrong("gateway", detail, remedy)
