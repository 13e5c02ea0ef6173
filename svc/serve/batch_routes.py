"""Routes of `/v1/batches`: made, looked at, listed, cancelled."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import attrs

from svc.batches.batches import check_metadata
from svc.errors import SvcError
from svc.serve.batch_lines import WINDOWS, StoredBatch
from svc.serve.batches import LocalBatches
from svc.serve.exchange import LocalRequest, WholeReply
from svc.serve.files import life_of, listing
from svc.serve.http import Handled, handled
from svc.serve.problems import invalid, problem_of
from svc.serve.requests import ROUTES

_MOST_LISTED, _USUALLY_LISTED = 100, 20
_LONGEST_BODY: Final = 1 << 16


@attrs.frozen
class LocalBatchRoutes:
    batches: LocalBatches

    def routes(self) -> Sequence[Handled]:
        return [
            handled("POST", "/v1/batches", self._create),
            handled("GET", "/v1/batches", self._list),
            handled("GET", "/v1/batches/{id}", self._get),
            handled("POST", "/v1/batches/{id}/cancel", self._cancel),
        ]

    async def _create(self, asked: LocalRequest) -> WholeReply:
        body = await asked.json(_LONGEST_BODY)
        endpoint, window, file_id = body.get("endpoint"), body.get("completion_window"), body.get("input_file_id")
        if endpoint not in ROUTES:
            raise invalid(f"endpoint must be one of {', '.join(ROUTES)}", "endpoint", "invalid_endpoint")
        if not isinstance(window, str) or window not in WINDOWS:
            raise invalid(f"completion_window must be one of {', '.join(WINDOWS)}", "completion_window")
        if not isinstance(file_id, str):
            raise invalid("input_file_id must name a file that was uploaded with purpose batch", "input_file_id")
        await self.batches.files.get(asked.key.name, file_id)
        metadata, seconds = _metadata(body.get("metadata")), _output_seconds(body.get("output_expires_after"))
        batch_id = f"batch_{secrets.token_hex(12)}"
        created = int(self.batches.trade.clock())
        made = StoredBatch(batch_id, asked.key.name, endpoint, file_id, window, created, metadata)
        made.output_seconds = seconds
        return WholeReply((await self.batches.begin(asked.key, made)).told())

    async def _list(self, asked: LocalRequest) -> WholeReply:
        told = [batch.told() for batch in await self.batches.all(asked.key.name)]
        return WholeReply(listing(told, asked.query, _MOST_LISTED, _USUALLY_LISTED))

    async def _get(self, asked: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.get(asked.key.name, batch_id)).told())

    async def _cancel(self, asked: LocalRequest, batch_id: str) -> WholeReply:
        return WholeReply((await self.batches.cancel(asked.key.name, batch_id)).told())


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
    return life_of(given.get("anchor"), given.get("seconds"), ("created_at",), "output_expires_after")
