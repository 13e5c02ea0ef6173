"""Files that a server names by address, fetched so that a sealed result holds them itself.

The address may be anything that the server's answer names, a store's signed address too: the provider's own headers
(its API key among them) go along only to the server that the jobs are submitted to.
"""

from typing import Final

import attrs
import httpx

from common.plain_answers import IDENTITY
from common.scalars import base64_of
from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import address_in, check_length, read_body, read_error
from svcd.failures import JobFailed

_KEY: Final = "url"


@attrs.define(slots=True)
class Downloads:
    """`longest` bounds all files of one output together, as the base64 that they are carried as."""

    client: httpx.AsyncClient
    submit_url: str
    longest: int
    _carried: int = 0

    async def carried(self, output: object) -> object:
        """An address, an object with one under `url`, or a list of these; each becomes `{b64, media_type}`, the
        object's other members kept."""
        if isinstance(output, list):
            return [await self.carried(item) for item in output]
        if isinstance(output, dict) and isinstance(output.get(_KEY), str):
            kept = {key: value for key, value in output.items() if key != _KEY}
            return kept | await self._fetch(output[_KEY])
        if isinstance(output, str):
            return await self._fetch(output)
        raise JobFailed("backend_error", "result_path leads to no address of a file", True)

    async def _fetch(self, url: str) -> dict[str, object]:
        target, home = address_in(self.submit_url, url), httpx.URL(self.submit_url)
        request = self.client.build_request("GET", target, headers=dict(IDENTITY))
        if (target.scheme, target.host, target.port) != (home.scheme, home.host, home.port):
            request = httpx.Request("GET", target, headers=dict(IDENTITY), extensions=request.extensions)
        try:
            response = await self.client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise await read_error(response)
                content = await read_body(response, (self.longest - self._carried) // 4 * 3)
            finally:
                await response.aclose()
        except httpx.RequestError as broken:
            raise TryAgain(f"a result's file did not come: {type(broken).__name__}") from None
        text = base64_of(content)
        self._carried += len(text)
        check_length(self._carried, self.longest)
        media_type = response.headers.get("content-type", "application/octet-stream").partition(";")[0].strip()
        return {"b64": text, "media_type": media_type}
