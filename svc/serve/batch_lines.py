"""Read lines of a batch in OpenAI's form, translate them to the market's form, and define a batch's stored state."""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from common.envelope import MAX_CUSTOM_ID_CODE_POINTS
from common.refusal import Refused
from common.strict_json import parse
from svc.batches.offers import LineOffer
from svc.records import Model, ModelDetails
from svc.serve.keys import ApiKey
from svc.serve.prices import Prices
from svc.serve.problems import Problem, invalid_request
from svc.serve.requests import EMBEDDINGS, RESPONSES, AnswerRequest, Route, read_model_name, read_request

JsonObject = dict[str, Any]

WINDOW_DURATIONS_S: Final = {"1h": 3_600, "24h": 86_400}
_END_STATUSES: Final = frozenset({"failed", "completed", "expired", "cancelled"})
_MAX_CUSTOM_ID_LENGTH: Final = 512
# OpenAI's error codes for lines that ended without a result.
OPENAI_ERROR_CODES: Final[Mapping[str, str]] = {
    "expired": "batch_expired",
    "cancelled": "batch_cancelled",
    "reclaim": "request_timeout",
}


class StoredBatch(msgspec.Struct):
    """State of a batch, stored at each step.

    `market_id`: id of the market's batch. `output_seconds`: lifetime of the results, unlimited if None. `max_amount`:
    highest amount that the client accepts, in base units.
    """

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
    errors: list[JsonObject] = []
    times: dict[str, int] = {}
    counts: dict[str, int] = msgspec.field(default_factory=lambda: {"total": 0, "completed": 0, "failed": 0})
    amount: str = "0"
    cost: str | None = None
    cancelling: bool = False
    output_seconds: int | None = None
    max_amount: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in _END_STATUSES

    def to_json(self) -> JsonObject:
        """Return the batch as OpenAI describes it."""
        status = "validating" if self.status == "posting" else self.status
        if self.cancelling and not self.ended:
            status = "cancelling"
        events = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.created_at + WINDOW_DURATIONS_S[self.completion_window],
            **{f"{name}_at": self.times.get(name) for name in events},
            "request_counts": self.counts,
            "metadata": self.metadata,
            "svc": {"batch_id": self.market_id, "amount": self.amount, "cost": self.cost},
        }


@attrs.frozen(slots=True)
class BatchRequest:
    """One line of a batch."""

    custom_id: str
    requested: AnswerRequest


async def read_line(prices: Prices, batch: StoredBatch, key: ApiKey, line: bytes) -> BatchRequest:
    try:
        value = parse(line.strip())
    except Refused as refusal:
        raise invalid_request(f"the line must be JSON: {refusal.message}", code="invalid_json_line") from None
    if not isinstance(value, dict):
        raise invalid_request("a line must be a JSON object", code="invalid_json_line")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_CUSTOM_ID_LENGTH:
        raise invalid_request(f"custom_id must be a text of 1 to {_MAX_CUSTOM_ID_LENGTH} characters", "custom_id")
    if value.get("method") != "POST":
        raise invalid_request("method must be POST", "method")
    if value.get("url") != batch.endpoint:
        raise invalid_request(f"url must be {batch.endpoint}, the endpoint of the batch", "url", "mismatched_endpoint")
    if not isinstance(body, dict):
        raise invalid_request("body must be an object", "body")
    name = read_model_name(body)
    try:
        model, rule = await prices.find_model(name, key.models)
    except Problem:
        if batch.market_id is None:
            raise
        # The line was posted before its model left the market, so the answer can still be read.
        model, rule = Model(name, "", ModelDetails(0, False, None, None)), prices.settings.rule_for(name)
    requested = read_request(batch.endpoint, body, model, rule)
    if requested.form.stream:
        raise invalid_request("stream must be false in a batch", "stream")
    return BatchRequest(custom_id, requested)


def shared_terms(requests: list[BatchRequest]) -> tuple[tuple[int, ...], LineOffer | None]:
    """Return the providers that all lines share, and an offer for lines without rates.

    If no providers are set, the offer is None. Set providers need an offer, because the market's plan could give lines
    without rates to other providers. Raises Problem if the lines name different providers.
    """
    rules = [request.requested.rule for request in requests]
    pinned = {rule.providers for rule in rules}
    if len(pinned) > 1:
        raise invalid_request(
            "the models of a batch must have the same providers in serve.toml: use separate batches",
            "model",
            "mixed_providers",
        )
    (providers,) = pinned
    return providers, LineOffer() if providers and not all(rule.has_rates for rule in rules) else None


def to_market_line(request: BatchRequest) -> JsonObject:
    """Return the line in the form of the market's batches."""
    requested = request.requested
    body: JsonObject = {**requested.input, "model": requested.model.id}
    if requested.units_out is not None:
        body["units_out"] = requested.units_out
    if requested.rule.has_rates:
        body |= {"rate_in": requested.rule.rate_in or 0, "rate_out": requested.rule.rate_out or 0}
    url = EMBEDDINGS if requested.route == EMBEDDINGS else RESPONSES
    line: JsonObject = {"url": url, "body": body}
    # Results are matched by line number. The custom_id is only for other programs that read the market's batch.
    return line | ({"custom_id": request.custom_id} if len(request.custom_id) <= MAX_CUSTOM_ID_CODE_POINTS else {})


def error_json(problem: Problem) -> JsonObject:
    return {"code": problem.code or problem.type, "message": problem.message, "param": problem.param, "line": None}
