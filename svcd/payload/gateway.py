"""Fetch payloads of jobs from storage gateways.

Gateways are not trusted, so the caller checks the content. If a gateway serves wrong content (such as an error page
with status 200, or a truncated file), another gateway may still have the right content.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import httpx
import structlog

from svc.wire.answers import follow_redirects
from svc.wire.gateways import Gateways, NoGatewayServed, NotServed, is_content_id
from svcd.base.end_reasons import WorkFailed
from svcd.payload.spool import Spool

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MIN_SERVER_ERROR_STATUS: Final = 500
_EMPTY_FILE_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@attrs.frozen(slots=True)
class PayloadGateways:
    gateways: Gateways

    async def fetch(self, cid: str, spool: Spool, deadline: float, check: Callable[[], Awaitable[T]]) -> T:
        """Fetch the content into `spool`, and return the result of `check`. `check` raises `WorkFailed` on a mismatch.

        Raise the `WorkFailed` of the first gateway with wrong content (`bad_container` if the content is too long), or
        `task_unresolved` if no gateway returned content.
        """
        if not is_content_id(cid):
            raise WorkFailed("task_unresolved", "the order's task_cid is not a content id")
        rejected: list[WorkFailed] = []

        async def write_piece(piece: bytes) -> None:
            if not await spool.write(piece):
                raise WorkFailed("bad_container", "the container is longer than max_container_bytes")

        async def attempt(url: str) -> T:
            spool.clear()
            try:
                await self.gateways.get(f"{url}/ipfs/{cid}", write_piece)
                return await check()
            except WorkFailed as other:
                log.warning("a gateway served wrong content", gateway=url, cid=cid, reason=other.reason)
                rejected.append(other)
                raise NotServed(str(other), retryable=False) from None

        try:
            return await self.gateways.try_each(attempt, deadline)
        except NoGatewayServed as failed:
            raise (rejected[0] if rejected else WorkFailed("task_unresolved", str(failed))) from None
        except OSError as full:  # raised by the spool, because httpx raises its own exceptions
            raise WorkFailed("task_unresolved", f"the payload cannot be stored: {full.strerror}") from None

    async def find_fault(self, url: str) -> str | None:
        """Return the reason why the gateway is unreachable, or None if it is reachable."""
        try:
            # Any response except a server error shows that the gateway is up, even a 404.
            async with follow_redirects(self.gateways.http, f"{url}/ipfs/{_EMPTY_FILE_CID}") as response:
                status = response.status_code
        except httpx.RequestError as failure:
            return f"{type(failure).__name__}: {failure}"
        return f"answered {status}" if status >= _MIN_SERVER_ERROR_STATUS else None
