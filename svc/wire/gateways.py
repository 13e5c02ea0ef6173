"""Reads of stored results from storage gateways, without credentials.

A round asks each gateway in turn. While any of them gave a network error, a 404 or a 5xx (a result may be seconds old),
there is another round, up to eight, 1.5 s apart; when all gave other errors, there is none.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import attrs
import httpx

from svc.core.retries import GATEWAY_ATTEMPTS, GATEWAY_PAUSE
from svc.errors import ResultUnreadable
from svc.wire.transport import Sleep, pieces_of

S = TypeVar("S")

_CID: Final = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)
_OK: Final = 200
_NOT_YET: Final = 404
_SERVER_FAULT: Final = 500


@attrs.define
class Gateways:
    """`urls` is empty when reads are disabled."""

    http: httpx.AsyncClient
    urls: tuple[str, ...]
    sleep: Sleep = anyio.sleep

    async def read(self, cid: str, begin: Callable[[], S], take: Callable[[S, bytes], object]) -> S:
        """Feed the object's pieces to `take`; `begin` makes what they are fed to, anew for every attempt.

        An answer that breaks off is read again from its start. What `take` raises is raised.
        """
        if not self.urls:
            raise ResultUnreadable("no gateway is set, so that results cannot be read", code="reads_disabled")
        if not _CID.fullmatch(cid):  # it becomes a path
            raise ResultUnreadable(f"{cid!r} is no content id", code="bad_cid")
        failures: list[str] = []
        for attempt in range(GATEWAY_ATTEMPTS):
            if attempt:
                await self.sleep(GATEWAY_PAUSE)
            failures, may_come = [], False
            for url in self.urls:
                sink = begin()
                failure = await self._read_once(f"{url}/ipfs/{cid}", sink, take)
                if failure is None:
                    return sink
                failures.append(f"{url}: {failure.what}")
                may_come = may_come or failure.may_come
            if not may_come:
                raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_status")
        raise ResultUnreadable(f"{cid}: {'; '.join(failures)}", code="gateway_unavailable", retryable=True)

    async def _read_once(self, url: str, sink: S, take: Callable[[S, bytes], object]) -> "_Failure | None":
        try:
            async with self.http.stream("GET", url, follow_redirects=True) as response:
                status = response.status_code
                if status != _OK:
                    return _Failure(f"status {status}", status == _NOT_YET or status >= _SERVER_FAULT)
                async with pieces_of(response) as pieces:
                    async for piece in pieces:
                        take(sink, piece)
        except httpx.TransportError as failed:
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=True)
        except (httpx.RequestError, httpx.InvalidURL) as failed:  # redirects without end or to nowhere, odd encodings
            return _Failure(f"{type(failed).__name__}: {failed}", may_come=False)
        return None


@attrs.frozen(slots=True)
class _Failure:
    what: str
    may_come: bool
