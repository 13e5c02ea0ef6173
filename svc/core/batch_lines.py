"""Read the lines of a batch as users write them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from common.api import limits
from common.pricing.model_input import EMBEDDINGS_ENDPOINT
from common.refusal import Refused
from common.strict_json import parse
from svc.core.bids import Rates, read_rates
from svc.core.model_input import read_custom_id
from svc.core.order_request import OrderRequest
from svc.errors import OrderRefused

RESPONSES_ENDPOINT: Final = "/v1/responses"
ENDPOINTS: Final = (RESPONSES_ENDPOINT, EMBEDDINGS_ENDPOINT)
MAX_LINES: Final = limits.MAX_BATCH_LINES
# Batch files for other services contain `method`, so the field is accepted and ignored.
_LINE_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})
_TERM_FIELDS: Final = frozenset({"model", "rate_in", "rate_out", "units_out"})


@attrs.frozen(slots=True)
class BatchLine:
    """Line of a batch. `number` counts non-blank lines from 1. Without `rates`, the chosen provider's ask applies."""

    number: int
    url: str
    request: OrderRequest
    rates: Rates | None


def read_lines(
    raw_lines: Iterable[bytes | str | Mapping[str, Any]], window: str, offered_rates: Mapping[str, Rates] | None = None
) -> Iterator[BatchLine]:
    """Parse lines from JSON texts or objects, and yield them. Blank lines are skipped.

    `offered_rates`: rates by model, for lines without rates. Raises OrderRefused with the number of the wrong line.

    A line looks like this:

        {"custom_id": "page 7", "url": "/v1/responses", "body": {"model": "demo/text-small", "input": "…"}}

    `body.model` is required. `body.rate_in`, `body.rate_out` and `body.units_out` set the order's terms; the rest of
    `body` is the model's input. `url` is `/v1/responses` by default, and all lines must have the same `url`. The
    `custom_id` is sealed with the input.
    """
    first: BatchLine | None = None
    seen: set[str] = set()
    non_blank = (text for text in raw_lines if isinstance(text, Mapping) or text.strip())
    for number, text in enumerate(non_blank, start=1):
        try:
            if number > MAX_LINES:
                raise Refused(f"a batch must have at most {MAX_LINES} lines")
            line = _read_line(number, text if isinstance(text, Mapping) else _parse_line(text), window)
            if line.rates is None and offered_rates is not None and line.request.model in offered_rates:
                line = _with_rates(line, offered_rates[line.request.model])
            custom_id = line.request.custom_id
            if custom_id in seen:
                raise Refused(f"custom_id {custom_id!r} is used by an earlier line", "custom_id")
            if first is not None and line.url != first.url:
                raise Refused(f"url must be {first.url}, as on the first line", "url")
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {number}") from None
        first = first or line
        if custom_id is not None:
            seen.add(custom_id)
        yield line
    if first is None:
        raise OrderRefused("the batch has no lines", code="empty_file")


def _parse_line(text: bytes | str) -> object:
    return parse((text.encode() if isinstance(text, str) else text).strip())


def _read_line(number: int, value: object, window: str) -> BatchLine:
    if not isinstance(value, Mapping):
        raise Refused("the line must be a JSON object")
    for key in value:
        if key not in _LINE_FIELDS:
            raise Refused(f"unknown field {key!r}: move the model's input into body", str(key))
    url = value.get("url", RESPONSES_ENDPOINT)
    if url not in ENDPOINTS:
        raise Refused(f"url must be one of {', '.join(ENDPOINTS)}", "url")
    body = value.get("body")
    if not isinstance(body, Mapping):
        raise Refused("body must be an object", "body")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("body.model is required", "body.model")
    request = OrderRequest(
        model=model,
        input={name: field_value for name, field_value in body.items() if name not in _TERM_FIELDS},
        window=window,
        rate_in=body.get("rate_in"),
        rate_out=body.get("rate_out"),
        units_out=body.get("units_out"),
        endpoint=url,
        custom_id=read_custom_id(value.get("custom_id")),
    )
    return BatchLine(number, url, request, read_rates(request.rate_in, request.rate_out))


def _with_rates(line: BatchLine, rates: Rates) -> BatchLine:
    request = attrs.evolve(line.request, rate_in=rates.rate_in, rate_out=rates.rate_out)
    return attrs.evolve(line, request=request, rates=rates)
