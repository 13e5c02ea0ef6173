"""Payloads of jobs, read from storage gateways.

A gateway's answer is not trusted: the caller checks the content. If a gateway serves other content (an error page with
status 200, a truncated file), the job must not fail while another gateway has the content.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import httpx
import structlog

from svc.wire.answers import followed
from svc.wire.gateways import Gateways, NoGateway, NotServed, is_content_id
from svcd.base.end_reasons import WorkFailed
from svcd.payload.spool import Spool

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SERVER_ERROR: Final = 500
_EMPTY_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"  # of no bytes


@attrs.frozen(slots=True)
class PayloadGateways:
    gateways: Gateways

    async def fetch(self, cid: str, into: Spool, deadline: float, check: Callable[[], Awaitable[T]]) -> T:
        """Fetch the content into `into`, and return the result of `check`, which raises `WorkFailed` for wrong content.

        Raise the first `WorkFailed` of a gateway with wrong content (`bad_container` if it was too long), or
        `task_unresolved` if no gateway had any content.
        """
        if not is_content_id(cid):
            raise WorkFailed("task_unresolved", "the order names no content id")
        rejected: list[WorkFailed] = []

        async def keep(piece: bytes) -> None:
            if not await into.write(piece):
                raise WorkFailed("bad_container", "it is longer than max_container_bytes")

        async def attempt(url: str) -> T:
            into.clear()
            try:
                await self.gateways.get(f"{url}/ipfs/{cid}", keep)
                return await check()
            except WorkFailed as other:
                log.warning("a gateway served other content", gateway=url, cid=cid, reason=other.reason)
                rejected.append(other)
                raise NotServed(str(other), may_come=False) from None

        try:
            return await self.gateways.first(attempt, deadline)
        except NoGateway as failed:
            raise (rejected[0] if rejected else WorkFailed("task_unresolved", str(failed))) from None
        except OSError as full:  # of the spool: the network's errors are converted to httpx's
            raise WorkFailed("task_unresolved", f"it cannot be kept here: {full.strerror}") from None

    async def reachable(self, url: str) -> str | None:
        """Return why the gateway is unreachable, or None."""
        try:
            # Any answer except a server error shows that the gateway is up, even a 404.
            async with followed(self.gateways.http, f"{url}/ipfs/{_EMPTY_CID}") as response:
                status = response.status_code
        except httpx.RequestError as failure:
            return f"{type(failure).__name__}: {failure}"
        return f"answered {status}" if status >= _SERVER_ERROR else None
