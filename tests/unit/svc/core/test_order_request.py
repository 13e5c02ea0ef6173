import pytest

from common.refusal import Refused
from svc.core.order_request import OrderRequest, candidates_request_body, price_request
from svc.records import Model, ModelDetails

MODEL = Model("m", "x", ModelDetails(3, True, {"properties": {"input": {"type": "string"}, "max_tokens": {}}}))


def test_text_is_wrapped_and_shaped() -> None:
    shaped = price_request(OrderRequest("m", "hello"), MODEL)
    assert shaped.input == {"input": "hello"}
    assert (shaped.modality, shaped.sla_secs, shaped.rates) == ("text", 86_400, None)
    assert candidates_request_body(shaped) == {"model_id": 3, "sla_secs": 86_400, "units_in": 5, "units_out": 4096}


def test_named_provider_is_probed_for() -> None:
    shaped = price_request(OrderRequest("m", {"max_tokens": 5, "top_k": 1}, "async", provider=9), MODEL)
    assert candidates_request_body(shaped)["designated"] == 9
    assert shaped.unlisted_parameters == ("top_k",)


def test_embeddings_pay_for_no_output() -> None:
    assert price_request(OrderRequest("m", "hello", endpoint="/v1/embeddings"), MODEL).units.units_out == 0


def test_models_endpoint_is_the_default() -> None:
    published = Model("m", "x", ModelDetails(3, True, endpoint="/v1/embeddings"))
    assert price_request(OrderRequest("m", "hello"), published).units.units_out == 0
    assert price_request(OrderRequest("m", "hello", endpoint="/v1/responses"), published).units.units_out == 4096


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (OrderRequest("m", 5), "input"),  # type: ignore[arg-type] # the point of it
        (OrderRequest("m", {"input": 5}), "input"),
        (OrderRequest("m", "x", provider=0), "provider"),
        (OrderRequest("m", "x", provider=2**32), "provider"),
        (OrderRequest("m", "x", custom_id=""), "custom_id"),
        (OrderRequest("m", "x", rate_in="-1"), "rate_in"),
        (OrderRequest("m", "x", units_out=-1), "units_out"),
    ],
)
def test_request_that_no_order_can_carry_is_refused_by_name(request_: OrderRequest, param: str) -> None:
    with pytest.raises(Refused) as refused:
        price_request(request_, MODEL)
    assert refused.value.param == param


def serving(endpoint: str | None) -> Model:
    return Model("m", "x", ModelDetails(3, True, {"properties": {"input": {}, "prompt": {}}}, endpoint))


IMAGES, EMBEDDINGS, CHAT = "/v1/images/generations", "/v1/embeddings", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("endpoint", "request_", "words"),
    [
        (IMAGES, OrderRequest("m", "a cat"), "m makes images: set num_images, width or resolution"),
        (IMAGES, OrderRequest("m", {"prompt": "a cat", "duration": 3}), "m makes images"),
        (IMAGES, OrderRequest("m", "a cat", endpoint=EMBEDDINGS), "m does not make embeddings"),
        (CHAT, OrderRequest("m", "a cat", endpoint=EMBEDDINGS), "m does not make embeddings: its endpoint is /v1/chat"),
        (
            CHAT,
            OrderRequest("m", {"input": "a", "width": 512}),
            "m returns text, not image: remove width",
        ),
        (EMBEDDINGS, OrderRequest("m", {"prompt": "a cat"}), "pass the texts as input"),
    ],
)
def test_request_that_the_model_cannot_serve_is_refused(endpoint: str, request_: OrderRequest, words: str) -> None:
    with pytest.raises(Refused, match=words):
        price_request(request_, serving(endpoint))
    price_request(request_, serving(None))


def test_image_whose_units_the_client_names_needs_no_parameter() -> None:
    assert (
        price_request(OrderRequest("m", {"prompt": "a cat"}, units_out=2**20), serving(IMAGES)).units.units_out == 2**20
    )


@pytest.mark.parametrize("provider", [1, 2**32 - 1])
def test_any_valid_provider_number_is_accepted(provider: int) -> None:
    assert price_request(OrderRequest("m", "x", provider=provider), MODEL).provider == provider


def test_model_that_takes_no_orders_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        price_request(OrderRequest("m", "x"), Model("m", "x", ModelDetails(3, False)))
    assert refused.value.param == "model"
