"""Routes of `/v1/batches`: create, get, list and cancel."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import attrs

from svc.batches.batches import check_metadata
from svc.errors import SvcError
from svc.serve.batch_lines import WINDOW_DURATIONS_S, StoredBatch
from svc.serve.batches import LocalBatches
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.files import build_list_page, read_lifetime
from svc.serve.http import LocalRoute, local_route
from svc.serve.problems import invalid_request, problem_from_error
from svc.serve.requests import ROUTES

_MAX_PAGE_BATCHES, _DEFAULT_PAGE_BATCHES = 100, 20
_MAX_BODY_BYTES: Final = 1 << 16


@attrs.frozen
class LocalBatchRoutes:
    """Handlers of `/v1/batches`."""

    batches: LocalBatches

    def routes(self) -> Sequence[LocalRoute]:
        return [
            local_route("POST", "/v1/batches", self._create),
            local_route("GET", "/v1/batches", self._list),
            local_route("GET", "/v1/batches/{id}", self._get),
            local_route("POST", "/v1/batches/{id}/cancel", self._cancel),
        ]

    async def _create(self, request: LocalRequest) -> WholeReply:
        batch = await self.read_batch(request)
        return WholeReply((await self.batches.begin(request.key, batch)).to_json())

    async def read_batch(self, request: LocalRequest) -> StoredBatch:
        """Return the requested batch, which is not stored yet. Raises Problem."""
        body = await request.read_json(_MAX_BODY_BYTES)
        endpoint, window, file_id = body.get("endpoint"), body.get("completion_window"), body.get("input_file_id")
        if endpoint not in ROUTES:
            raise invalid_request(f"endpoint must be one of {', '.join(ROUTES)}", "endpoint", "invalid_endpoint")
        if not isinstance(window, str) or window not in WINDOW_DURATIONS_S:
            raise invalid_request(
                f"completion_window must be one of {', '.join(WINDOW_DURATIONS_S)}", "completion_window"
            )
        if not isinstance(file_id, str):
            raise invalid_request("input_file_id must name a file uploaded with purpose batch", "input_file_id")
        await self.batches.files.get(request.key.name, file_id)
        metadata, seconds = _read_metadata(body.get("metadata")), _read_output_seconds(body.get("output_expires_after"))
        batch_id = f"batch_{secrets.token_hex(12)}"
        created = int(self.batches.context.clock())
        batch = StoredBatch(batch_id, request.key.name, endpoint, file_id, window, created, metadata)
        batch.output_seconds = seconds
        batch.max_amount = None if (limit := request.max_amount) is None else str(limit)
        return batch

    async def _list(self, request: LocalRequest) -> WholeReply:
        data = [batch.to_json() for batch in await self.batches.list_batches(request.key.name)]
        return WholeReply(build_list_page(data, request.query, _MAX_PAGE_BATCHES, _DEFAULT_PAGE_BATCHES))

    async def _get(self, request: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.get(request.key.name, batch_id)).to_json())

    async def _cancel(self, request: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.cancel(request.key.name, batch_id)).to_json())


def _read_metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid_request("metadata must be an object whose values are texts", "metadata")
    try:
        check_metadata(value)
    except SvcError as error:
        raise problem_from_error(error) from None
    return value


def _read_output_seconds(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid_request("output_expires_after must be an object", "output_expires_after")
    return read_lifetime(value.get("anchor"), value.get("seconds"), ("created_at",), "output_expires_after")
