"""Download the files that a server's answer names by URL, so that the sealed result contains the files.

A URL may lead to any host, for example to an object store. The provider's configured headers, such as an API key, are
sent only to the server that receives the jobs.
"""

import base64
from typing import Final
from urllib.parse import unquote_to_bytes

import attrs
import httpx

from common.response_checks import IDENTITY_HEADERS
from common.scalars import base64_of
from svc.wire.answers import convert_request_errors
from svcd.backends.attempts import TryAgain
from svcd.backends.http_answers import check_length, read_body, read_error, resolve_url
from svcd.base.end_reasons import WorkFailed

_URL_KEY: Final = "url"
_DATA_URL_PREFIX: Final = "data:"


@attrs.define(slots=True)
class FileDownloader:
    """Downloader of the files of one output. `max_length` limits the total length of the files in base64."""

    client: httpx.AsyncClient
    submit_url: str
    max_length: int
    _downloaded_length: int = 0

    async def embed_files(self, output: object) -> object:
        """Return `output` with each URL replaced by the file, as `{b64, media_type}`.

        `output` is a URL, an object with a URL under `url`, or a list of these. An object keeps its other members.
        """
        if isinstance(output, list):
            return [await self._embed_file(item) for item in output]
        return await self._embed_file(output)

    async def _embed_file(self, output: object) -> object:
        if isinstance(output, dict) and isinstance(output.get(_URL_KEY), str):
            other_members = {key: value for key, value in output.items() if key != _URL_KEY}
            return other_members | await self._fetch(output[_URL_KEY])
        if isinstance(output, str):
            return await self._fetch(output)
        raise WorkFailed(
            "backend_error",
            "the value at result_path is neither a URL nor an object with a url: correct result_path or download",
            True,
        )

    async def _fetch(self, url: str) -> dict[str, object]:
        if url[: len(_DATA_URL_PREFIX)].lower() == _DATA_URL_PREFIX:
            return self._decode_data_url(url)
        target, submit_url = resolve_url(self.submit_url, url), httpx.URL(self.submit_url)
        try:
            with convert_request_errors():
                request = self.client.build_request("GET", target, headers=dict(IDENTITY_HEADERS))
                if (target.scheme, target.host, target.port) != (submit_url.scheme, submit_url.host, submit_url.port):
                    request = httpx.Request(
                        "GET", target, headers=dict(IDENTITY_HEADERS), extensions=request.extensions
                    )
                response = await self.client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise await read_error(response)
                content = await read_body(response, (self.max_length - self._downloaded_length) // 4 * 3)
            finally:
                await response.aclose()
        except httpx.RequestError as broken:
            raise TryAgain(f"a file of the result could not be downloaded: {type(broken).__name__}") from None
        return self._encode_file(content, response.headers.get("content-type", ""))

    def _decode_data_url(self, url: str) -> dict[str, object]:
        """Return the content of a `data:` URL in base64 or percent encoding."""
        head, comma, content = url[len(_DATA_URL_PREFIX) :].partition(",")
        check_length(self._downloaded_length + len(content), self.max_length)
        kind, marked, _ = head.rpartition(";base64")
        try:
            raw = base64.b64decode(unquote_to_bytes(content), validate=True) if marked else unquote_to_bytes(content)
        except ValueError:
            raw = None
        if raw is None or not comma:
            raise WorkFailed("backend_error", "the answer has a malformed data: URL", True)
        return self._encode_file(raw, kind if marked else head)

    def _encode_file(self, content: bytes, content_type: str) -> dict[str, object]:
        text = base64_of(content)
        self._downloaded_length += len(text)
        check_length(self._downloaded_length, self.max_length)
        return {"b64": text, "media_type": content_type.partition(";")[0].strip() or "application/octet-stream"}
