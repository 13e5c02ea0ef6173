"""Routes of `/v1/batches`: create, get, list and cancel."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import attrs

from svc.batches.batches import check_metadata
from svc.errors import SvcError
from svc.serve.batch_lines import WINDOWS, StoredBatch
from svc.serve.batches import LocalBatches
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.files import list_page, read_lifetime
from svc.serve.http import LocalRoute, local_route
from svc.serve.problems import invalid, problem_of
from svc.serve.requests import ROUTES

_MAX_LIMIT, _DEFAULT_LIMIT = 100, 20
_MAX_BODY_BYTES: Final = 1 << 16


@attrs.frozen
class LocalBatchRoutes:
    batches: LocalBatches

    def routes(self) -> Sequence[LocalRoute]:
        return [
            local_route("POST", "/v1/batches", self._create),
            local_route("GET", "/v1/batches", self._list),
            local_route("GET", "/v1/batches/{id}", self._get),
            local_route("POST", "/v1/batches/{id}/cancel", self._cancel),
        ]

    async def _create(self, request: LocalRequest) -> WholeReply:
        body = await request.read_json(_MAX_BODY_BYTES)
        endpoint, window, file_id = body.get("endpoint"), body.get("completion_window"), body.get("input_file_id")
        if endpoint not in ROUTES:
            raise invalid(f"endpoint must be one of {', '.join(ROUTES)}", "endpoint", "invalid_endpoint")
        if not isinstance(window, str) or window not in WINDOWS:
            raise invalid(f"completion_window must be one of {', '.join(WINDOWS)}", "completion_window")
        if not isinstance(file_id, str):
            raise invalid("input_file_id must name a file uploaded with purpose batch", "input_file_id")
        await self.batches.files.get(request.key.name, file_id)
        metadata, seconds = _metadata(body.get("metadata")), _output_seconds(body.get("output_expires_after"))
        batch_id = f"batch_{secrets.token_hex(12)}"
        created = int(self.batches.trade.clock())
        batch = StoredBatch(batch_id, request.key.name, endpoint, file_id, window, created, metadata)
        batch.output_seconds = seconds
        return WholeReply((await self.batches.begin(request.key, batch)).to_json())

    async def _list(self, request: LocalRequest) -> WholeReply:
        data = [batch.to_json() for batch in await self.batches.list_batches(request.key.name)]
        return WholeReply(list_page(data, request.query, _MAX_LIMIT, _DEFAULT_LIMIT))

    async def _get(self, request: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.get(request.key.name, batch_id)).to_json())

    async def _cancel(self, request: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.cancel(request.key.name, batch_id)).to_json())


def _metadata(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise invalid("metadata must be an object of texts", "metadata")
    try:
        check_metadata(given)
    except SvcError as error:
        raise problem_of(error) from None
    return given


def _output_seconds(given: Any) -> int | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise invalid("output_expires_after must be an object", "output_expires_after")
    return read_lifetime(given.get("anchor"), given.get("seconds"), ("created_at",), "output_expires_after")
