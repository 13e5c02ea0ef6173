import json
from typing import Any

import pytest

from svc.core.batch_lines import read_lines
from svc.core.bids import Rates
from svc.core.order_request import OrderRequest
from svc.errors import OrderRefused

BODY = {"model": "m", "input": "hello"}


def line(**changed: Any) -> dict[str, Any]:
    return {"body": BODY} | changed


def test_terms_are_removed_from_the_models_input() -> None:
    body = {"model": "m", "rate_in": "5", "rate_out": 6, "units_out": 7, "prompt": "p", "max_tokens": 3}
    (read,) = read_lines([json.dumps({"custom_id": "a", "method": "POST", "body": body})], "1h")
    assert (read.url, read.rates) == ("/v1/responses", Rates(5, 6))
    assert read.request == OrderRequest(
        model="m",
        input={"prompt": "p", "max_tokens": 3},
        window="1h",
        rate_in="5",
        rate_out=6,
        units_out=7,
        endpoint="/v1/responses",
        custom_id="a",
    )


def test_lines_are_text_bytes_or_objects() -> None:
    texts = [json.dumps(line()), "", b"  \n", json.dumps(line()).encode() + b"\n", line()]
    assert [one.number for one in read_lines(texts, "1h")] == [1, 2, 3]


def test_embeddings_are_a_batch_of_their_own() -> None:
    read = read_lines([line(url="/v1/embeddings"), line(url="/v1/embeddings")], "1h")
    assert {one.url for one in read} == {"/v1/embeddings"}


@pytest.mark.parametrize(
    ("lines", "place", "param"),
    [
        ([line(custom_id="a"), line(), line(custom_id="a")], "line 3", "custom_id"),
        ([line(custom_id="")], "line 1", "custom_id"),
        ([line(custom_id="x" * 65)], "line 1", "custom_id"),
        ([line(custom_id=5)], "line 1", "custom_id"),
        ([line(), line(url="/v1/embeddings")], "line 2", "url"),
        ([line(url="/v1/chat/completions")], "line 1", "url"),
        ([line(body={"input": "x"})], "line 1", "body.model"),
        ([line(body="x")], "line 1", "body"),
        ([line(), line(body={**BODY, "rate_out": "-1"})], "line 2", "rate_out"),
        ([{"model": "m", "input": "x"}], "line 1", "model"),
        ([line(), "[1]"], "line 2", None),
        ([line(), "{broken"], "line 2", None),
        ([line()] * 50_001, "line 50001", None),
    ],
)
def test_line_that_breaks_a_rule_is_refused_by_its_number(lines: list[Any], place: str, param: str | None) -> None:
    with pytest.raises(OrderRefused) as refused:
        list(read_lines(lines, "1h"))
    assert refused.value.message.startswith(f"{place}: ")
    assert refused.value.param == param


def test_batch_without_lines_is_refused() -> None:
    with pytest.raises(OrderRefused) as refused:
        list(read_lines(["", " "], "1h"))
    assert refused.value.code == "empty_file"
