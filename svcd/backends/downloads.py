"""Download files that a server names by address, so that a sealed result contains them.

The address may be anything that the server's answer names, also a signed address of a store. The provider's own
headers, such as its API key, are sent only to the server that the jobs are submitted to.
"""

import base64
from typing import Final
from urllib.parse import unquote_to_bytes

import attrs
import httpx

from common.plain_answers import IDENTITY
from common.scalars import base64_of
from svc.wire.answers import request_errors
from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import address_in, check_length, read_body, read_error
from svcd.base.end_reasons import WorkFailed

_KEY: Final = "url"
_DATA: Final = "data:"


@attrs.define(slots=True)
class Downloads:
    """Downloads for one output. `max_length` limits the total base64 length of its files."""

    client: httpx.AsyncClient
    submit_url: str
    max_length: int
    _carried: int = 0

    async def carried(self, output: object) -> object:
        """Replace each address by `{b64, media_type}`.

        `output` is an address, an object with an address under `url`, or a list of these. An object keeps its other
        members.
        """
        if isinstance(output, list):
            return [await self._carried_one(item) for item in output]
        return await self._carried_one(output)

    async def _carried_one(self, output: object) -> object:
        if isinstance(output, dict) and isinstance(output.get(_KEY), str):
            kept = {key: value for key, value in output.items() if key != _KEY}
            return kept | await self._fetch(output[_KEY])
        if isinstance(output, str):
            return await self._fetch(output)
        raise WorkFailed("backend_error", "the value at result_path is not the address of a file", True)

    async def _fetch(self, url: str) -> dict[str, object]:
        if url[: len(_DATA)].lower() == _DATA:
            return self._inline(url)
        target, home = address_in(self.submit_url, url), httpx.URL(self.submit_url)
        try:
            with request_errors():
                request = self.client.build_request("GET", target, headers=dict(IDENTITY))
                if (target.scheme, target.host, target.port) != (home.scheme, home.host, home.port):
                    request = httpx.Request("GET", target, headers=dict(IDENTITY), extensions=request.extensions)
                response = await self.client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise await read_error(response)
                content = await read_body(response, (self.max_length - self._carried) // 4 * 3)
            finally:
                await response.aclose()
        except httpx.RequestError as broken:
            raise TryAgain(f"a file of the result could not be downloaded: {type(broken).__name__}") from None
        return self._carry(content, response.headers.get("content-type", ""))

    def _inline(self, url: str) -> dict[str, object]:
        """Return the content of a `data:` address, in base64 or percent-encoded."""
        head, comma, content = url[len(_DATA) :].partition(",")
        check_length(self._carried + len(content), self.max_length)
        kind, marked, _ = head.rpartition(";base64")
        try:
            raw = base64.b64decode(unquote_to_bytes(content), validate=True) if marked else unquote_to_bytes(content)
        except ValueError:
            raw = None
        if raw is None or not comma:
            raise WorkFailed("backend_error", "the answer has a malformed data: address", True)
        return self._carry(raw, kind if marked else head)

    def _carry(self, content: bytes, content_type: str) -> dict[str, object]:
        text = base64_of(content)
        self._carried += len(text)
        check_length(self._carried, self.max_length)
        return {"b64": text, "media_type": content_type.partition(";")[0].strip() or "application/octet-stream"}
