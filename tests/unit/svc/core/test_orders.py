from typing import Any

import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from common.address_book import AddressBook, TokenDomain
from common.api.chain import reported_book
from common.box import SecretKey
from common.domains import Domains, SigningDomain
from common.eip712 import Message
from common.escrow_evidence import report_data
from common.messages.jobs import Cancel, Order
from common.messages.payments import job_payment
from common.messages.sessions import ResultKey, SvcSession
from common.refusal import Refused
from svc.core.escrow_trust import EscrowTrust, verify_escrow_key
from svc.core.market import VerifiedMarket
from svc.core.order_request import OrderRequest, candidates_request_body, price_request
from svc.core.sealing import SealedContainer
from svc.core.typed_data import build_signing_request
from svc.errors import EscrowUntrusted
from svc.records import Contracts, Deployment, EscrowKey, Evidence, Model, ModelDetails, TokenName

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
        (CHAT, OrderRequest("m", {"input": "a", "width": 512}), "m returns text, not image: remove width"),
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


@pytest.mark.parametrize(("length", "fits"), [(15_679_488, True), (15_679_489, False)])
def test_container_up_to_the_limit_travels_in_the_body(length: int, fits: bool) -> None:
    assert SealedContainer(bytes(length), bytes(32)).fits_inline is fits


CONTRACTS = Contracts(*(f"0x{n:02x}" + "ab" * 19 for n in (1, 2, 3, 4)))
TOLD = reported_book(Deployment(31337, CONTRACTS, 6, TokenName("Dev Dollar", "1"), 1, 1, 1, 250))
DOMAINS: Domains = VerifiedMarket.of(TOLD).domains
OWNER, JOB = bytes(range(20)), bytes(range(32))
ORDER = Order(JOB, 1, 3600, 2**128 - 1, 0, 2**32 - 1, 5, 0, 2**64 - 1)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (DOMAINS.jobs, ORDER),
        (DOMAINS.jobs, Cancel(JOB, 5)),
        (DOMAINS.token, job_payment(OWNER, bytes(20), 2**130, 1_700_000_000, JOB)),
        (DOMAINS.session, SvcSession(OWNER, "ab" * 16)),
        (DOMAINS.results, ResultKey("result key")),
    ],
)
def test_both_request_forms_are_one_message_to_wallets(domain: SigningDomain[Message], message: Message) -> None:
    asked = build_signing_request("thing", domain, message)
    signable = encode_typed_data(full_message=asked.typed_data())
    assert keccak(b"\x19" + signable.version + signable.header + signable.body) == asked.digest


KEY = SecretKey(bytes(range(32))).public
OTHER = SecretKey(bytes(range(1, 33))).public


def answer(key: str = KEY.raw.hex(), **changed: Any) -> EscrowKey:
    said = {"type": "static-coordinator-v1", "report_data": report_data(KEY).hex(), "debug": False, "release": 1}
    return EscrowKey(key, Evidence(**said | changed), 1_700_000_000)


@pytest.mark.parametrize(
    ("said", "trust"),
    [
        (answer(), EscrowTrust()),
        (answer(), EscrowTrust(pinned_keys=[OTHER.raw.hex(), "0x" + KEY.raw.hex().upper()])),
        (answer(type="mock-coordinator-v1"), EscrowTrust(allow_mock=True)),
        (answer(debug=True), EscrowTrust(allow_debug=True)),
    ],
)
def test_key_that_is_trusted_is_returned(said: EscrowKey, trust: EscrowTrust) -> None:
    assert verify_escrow_key(said, trust) == KEY


@pytest.mark.parametrize(
    ("said", "trust", "code"),
    [
        (answer(key=OTHER.raw.hex()), EscrowTrust(), "escrow_binding"),
        (answer(report_data=report_data(OTHER).hex()), EscrowTrust(), "escrow_binding"),
        (answer(debug=True), EscrowTrust(allow_mock=True), "escrow_debug"),
        (answer(type="mock-coordinator-v1"), EscrowTrust(allow_debug=True), "escrow_mock"),
        (answer(), EscrowTrust(pinned_keys=[OTHER.raw.hex()]), "escrow_not_pinned"),
        (answer(type="static-coordinator-v2"), EscrowTrust(), "escrow_malformed"),
        (answer(key="0x" + KEY.raw.hex()), EscrowTrust(), "escrow_malformed"),
        (answer(key="00" * 32), EscrowTrust(), "escrow_malformed"),
        (answer(report_data="beef"), EscrowTrust(), "escrow_malformed"),
    ],
)
def test_key_that_is_not_trusted_is_refused_with_its_reason(said: EscrowKey, trust: EscrowTrust, code: str) -> None:
    with pytest.raises(EscrowUntrusted) as refused:
        verify_escrow_key(said, trust)
    assert refused.value.code == code


BOOK = AddressBook(31337, 77, *(bytes([n]) * 20 for n in (1, 2, 3, 4)), 6, TokenDomain("Dev Dollar", "1"))


def test_market_of_a_book_signs_in_the_domains_of_its_contracts() -> None:
    market = VerifiedMarket.of(BOOK)
    assert (market.chain_id, market.job_registry, market.decimals) == (31337, b"\x01" * 20, 6)
    assert market.domains == Domains.of(BOOK)
