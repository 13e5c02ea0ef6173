"""Lines of a batch in OpenAI's own form, what the market's batches make of them, and what is kept of a batch."""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from common.envelope import MAX_CUSTOM_ID_LENGTH
from common.refusal import Refused
from common.strict_json import parse
from svc.batches.offers import LineOffer
from svc.records import Model, ModelDetails
from svc.serve.keys import ApiKey
from svc.serve.prices import Prices
from svc.serve.problems import Problem, invalid
from svc.serve.requests import EMBEDDINGS, RESPONSES, Route, Wanted, model_name, read_request

Json = dict[str, Any]

WINDOWS: Final = {"1h": 3_600, "24h": 86_400}
_ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
_LONGEST_ID: Final = 512
# How lines end, in OpenAI's words where it has one.
OPENAI_CODES: Final[Mapping[str, str]] = {
    "expired": "batch_expired",
    "cancelled": "batch_cancelled",
    "reclaim": "request_timeout",
}


class StoredBatch(msgspec.Struct):
    """What is known of a batch, written down at each step. `market_id`: the market's own; `output_seconds`: how long
    its results are kept, for ever where it does not say."""

    id: str
    key: str
    endpoint: Route
    input_file_id: str
    completion_window: str
    created_at: int
    metadata: dict[str, str] | None = None
    status: str = "validating"
    market_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[Json] = []
    times: dict[str, int] = {}
    counts: dict[str, int] = msgspec.field(default_factory=lambda: {"total": 0, "completed": 0, "failed": 0})
    amount: str = "0"
    cost: str | None = None
    cancelling: bool = False
    output_seconds: int | None = None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    def told(self) -> Json:
        """As OpenAI describes one."""
        shown = "validating" if self.status == "posting" else self.status
        if self.cancelling and not self.ended:
            shown = "cancelling"
        moments = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": shown,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.created_at + WINDOWS[self.completion_window],
            **{f"{name}_at": self.times.get(name) for name in moments},
            "request_counts": self.counts,
            "metadata": self.metadata,
            "svc": {"batch_id": self.market_id, "amount": self.amount, "cost": self.cost},
        }


@attrs.frozen(slots=True)
class BatchRequest:
    """One line: what was asked for under a `custom_id`."""

    custom_id: str
    wanted: Wanted


async def read_line(prices: Prices, batch: StoredBatch, key: ApiKey, line: bytes) -> BatchRequest:
    try:
        value = parse(line.strip())
    except Refused as refusal:
        raise invalid(f"the line must be JSON: {refusal.message}", code="invalid_json_line") from None
    if not isinstance(value, dict):
        raise invalid("a line must be a JSON object", code="invalid_json_line")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _LONGEST_ID:
        raise invalid(f"custom_id must be a text of 1 to {_LONGEST_ID} signs", "custom_id")
    if value.get("method") != "POST":
        raise invalid("method must be POST", "method")
    if value.get("url") != batch.endpoint:
        raise invalid(f"url must be {batch.endpoint}, as the batch's endpoint", "url", "mismatched_endpoint")
    if not isinstance(body, dict):
        raise invalid("body must be an object", "body")
    name = model_name(body)
    try:
        model, rule = await prices.find(name, key.models)
    except Problem:
        if batch.market_id is None:
            raise
        # It is posted, and the model taken from the market since: the answer is read all the same.
        model, rule = Model(name, "", ModelDetails(0, False, None, None)), prices.settings.rule(name)
    wanted = read_request(batch.endpoint, body, model, rule)
    if wanted.form.stream:
        raise invalid("stream must be false in a batch", "stream")
    return BatchRequest(custom_id, wanted)


def shared_terms(requests: list[BatchRequest]) -> tuple[tuple[int, ...], LineOffer | None]:
    """The providers of all lines, and the offer where they take what these ask. Raises Problem where lines differ."""
    rules = [request.wanted.rule for request in requests]
    pinned = {rule.providers for rule in rules}
    if len(pinned) > 1:
        raise invalid("models with different providers must be in batches of their own", "model", "mixed_providers")
    (providers,) = pinned
    return providers, LineOffer() if providers and not any(rule.bids for rule in rules) else None


def market_line(request: BatchRequest) -> Json:
    """A line as the market's batches have it."""
    wanted = request.wanted
    body: Json = {**wanted.input, "model": wanted.model.id}
    if wanted.units_out is not None:
        body["units_out"] = wanted.units_out
    if wanted.rule.bids:
        body |= {"rate_in": wanted.rule.rate_in or 0, "rate_out": wanted.rule.rate_out or 0}
    url = EMBEDDINGS if wanted.route == EMBEDDINGS else RESPONSES
    line: Json = {"url": url, "body": body}
    # Ours are known by their number; it is sealed for whoever looks at the market's batch beside us.
    return line | ({"custom_id": request.custom_id} if len(request.custom_id) <= MAX_CUSTOM_ID_LENGTH else {})


def told_error(problem: Problem) -> Json:
    return {"code": problem.code or problem.type, "message": problem.message, "param": problem.param, "line": None}
