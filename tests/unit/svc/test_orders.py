"""From an input to a posted job, against a scripted coordinator."""

import time
from email.utils import formatdate

import httpx
import pytest

from common.container import commitment_of, open_with_secret
from common.envelope import Envelope
from common.quotes import derive_job_id
from common.scalars import hex_of, read_base64
from common.secp256k1 import recover_address
from svc.client import Client
from svc.core.market import VerifiedMarket
from svc.core.quote_check import compute_quote, fee_terms, order_amount
from svc.core.sealing import MAX_INLINE_CONTAINER_BYTES
from svc.errors import InvalidRequest, NoProvider, OrderRefused, OutcomeUnknown, QuoteRefused, RelayUnavailable
from svc.orders import OtherWindow, UnlistedParameter
from tests.unit.svc.fake_chain import NODE, FakeNode
from tests.unit.svc.fake_coordinator import (
    BOX_SECRET,
    CANDIDATE,
    DEPLOYMENT,
    JOB_REGISTRY,
    MODEL,
    WALLET,
    Answer,
    Asked,
    Dropped,
    FakeCoordinator,
    Told,
    failing,
    job,
    posted,
    provider,
    quoting,
)

JOBS = "POST /v1/jobs"
REGISTRY = bytes.fromhex(JOB_REGISTRY[2:])


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator({JOBS: [in_turn(submitted=[posted])]})


def in_turn(*, submitted: list[Told], quoted: Told | None = None, probed: list[object] | None = None) -> Told:
    """Script POST /v1/jobs in its three modes. Submissions are answered in turn."""
    later = iter(submitted)
    quote = quoted or quoting()

    def answer(asked: Asked) -> Answer:
        if "auth_sig" in asked.body:
            told = next(later)
        elif "c" in asked.body:
            told = quote
        else:
            return Answer(402, {"candidates": [CANDIDATE] if probed is None else probed})
        if isinstance(told, Dropped):
            raise httpx.ReadError("connection lost")
        return told if isinstance(told, Answer) else told(asked)

    return answer


async def market_of(client: Client) -> VerifiedMarket:
    return await client._account.market()


def submissions(coordinator: FakeCoordinator) -> list[Asked]:
    return [asked for asked in coordinator.to(JOBS) if "auth_sig" in asked.body]


async def test_submission_is_signed_sealed_and_paid(coordinator: FakeCoordinator) -> None:
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello", window="async", custom_id="mine")
    submitted = await client.submit(prepared)
    (asked,) = submissions(coordinator)
    body, market = asked.body, await market_of(client)
    container = read_base64(body["container"], MAX_INLINE_CONTAINER_BYTES, "container")
    envelope = Envelope.parse(open_with_secret(BOX_SECRET, 31337, REGISTRY, WALLET.address, container))
    assert (envelope.input, envelope.model, envelope.custom_id) == ({"input": "hello"}, "demo/text", "mine")
    assert body["c"] == hex_of(commitment_of(container).c)
    assert (
        body["job_id"]
        == prepared.id
        == hex_of(derive_job_id(WALLET.address, commitment_of(container).c))
        == submitted.job_id
    )
    order = prepared.sealed_order.order
    assert recover_address(market.domains.jobs.digest(order), bytes.fromhex(body["signature"][2:])) == WALLET.address
    payment = prepared.payment(submitted.amount).digest
    assert recover_address(payment, bytes.fromhex(body["auth_sig"][2:])) == WALLET.address
    assert (body["rate_in"], body["rate_out"], body["designated"]) == ("1000000", "2000000", 7)
    assert int(body["expires_at"]) - time.time() == pytest.approx(7200, abs=5)


@pytest.mark.parametrize(("window", "margin", "life"), [("5m", 600, 900), ("batch", 600, 86_400), ("1h", 0, 3600)])
async def test_order_stands_for_its_window_and_the_margin_that_was_set(
    coordinator: FakeCoordinator, window: str, margin: int, life: int
) -> None:
    prepared = await coordinator.client(settlement_margin=margin).prepare("demo/text", "hello", window=window)
    assert prepared.terms.expires_at - time.time() == pytest.approx(life, abs=5)


async def test_open_order_without_an_escrow_is_refused(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /key", failing(403, "invalid_request_error", "escrow_unavailable"))
    with pytest.raises(InvalidRequest) as refused:
        await coordinator.client().prepare("demo/text", "hello", rate_in=1)
    assert refused.value.code == "escrow_unavailable"


async def test_named_provider_gets_orders_sealed_to_its_key(coordinator: FakeCoordinator) -> None:
    prepared = await coordinator.client().prepare("demo/text", "hello", provider=7, rate_in="5")
    assert (prepared.terms.designated, prepared.terms.rates.rate_in, prepared.terms.rates.rate_out) == (7, 5, 0)
    assert JOBS not in coordinator.routes()
    assert open_with_secret(
        BOX_SECRET, 31337, REGISTRY, WALLET.address, prepared.sealed_order.sealed_container.container
    )


async def test_provider_without_a_key_is_refused(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /evm/providers/7", Answer(200, provider(box_key=None)))
    with pytest.raises(NoProvider):
        await coordinator.client().prepare("demo/text", "hello", provider=7, rate_in="5")


async def test_market_without_live_providers_takes_no_order(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[], probed=[]))
    with pytest.raises(NoProvider):
        await coordinator.client().run("demo/text", "hello")
    assert submissions(coordinator) == []


async def test_unlisted_parameter_is_warned_of_and_sent(coordinator: FakeCoordinator) -> None:
    listed = {"svc": {"model_id": "1", "enabled": True, "params_schema": {"properties": {"input": {}}}}}
    coordinator.tell("GET /v1/models/demo/text", Answer(200, MODEL | listed))
    with pytest.warns(UnlistedParameter, match="top_k"):
        prepared = await coordinator.client().prepare("demo/text", {"input": "x", "top_k": 3})
    assert prepared.unlisted_parameters == ("top_k",)


async def test_changed_gas_fee_is_signed_again(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[quoting(3_000, status=409), quoting(4_000, status=409), posted]))
    client = coordinator.client()
    submitted = await client.submit(await client.prepare("demo/text", "hello"))
    amounts = [int(asked.body["amount"]) for asked in submissions(coordinator)]
    assert amounts == [submitted.amount - 2_000, submitted.amount - 1_000, submitted.amount]
    assert len({asked.body["auth_sig"] for asked in submissions(coordinator)}) == 3


async def test_price_that_changes_under_three_attempts_is_given_up(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[quoting(gas, status=409) for gas in (3, 4, 5, 6)]))
    client = coordinator.client()
    with pytest.raises(QuoteRefused) as refused:
        await client.submit(await client.prepare("demo/text", "hello"))
    assert (refused.value.code, len(submissions(coordinator))) == ("price_changed", 3)


@pytest.mark.parametrize(
    "lie",
    [
        {"cap": "1"},
        {"fee": "0"},
        {"amount": "1"},
        {"value": "99999999"},
        {"to": "0x" + "66" * 20},
        {"valid_before": "99999999999"},
        {"valid_after": "1"},
        {"nonce": "0x" + "66" * 32},
        {"fee_bps": 70_000},
        {"domain": {"name": "Dev Dollar", "version": "1", "chainId": 1, "verifyingContract": "0x" + "14" * 20}},
    ],
)
async def test_wrong_quote_is_not_paid(coordinator: FakeCoordinator, lie: dict[str, object]) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[posted], quoted=quoting(**lie)))  # type: ignore[arg-type] # any field
    client = coordinator.client()
    with pytest.raises(QuoteRefused) as refused:
        await client.submit(await client.prepare("demo/text", "hello"))
    assert (refused.value.code, submissions(coordinator)) == ("quote_mismatch", [])


async def test_computed_quote_equals_coordinator_quote(coordinator: FakeCoordinator) -> None:
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    quoted = await client.quote(prepared)
    terms = fee_terms(quoted.quote)
    computed = compute_quote(prepared, terms)
    assert computed.quote == quoted.quote
    assert computed.candidates == ()
    assert order_amount(prepared, terms) == quoted.quote.amount


async def test_amount_over_the_bound_is_never_paid(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[quoting(10**9, status=409)]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    quoted = await client.quote(prepared)
    with pytest.raises(QuoteRefused) as refused:
        await client.submit(prepared, quoted, max_amount=quoted.quote.amount)
    assert (refused.value.code, len(submissions(coordinator))) == ("over_max_amount", 1)


async def test_submission_is_not_made_again_on_an_error_status(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[failing(503, "relay_unavailable", "relay_queue_full", retryable=True)]))
    client = coordinator.client()
    with pytest.raises(RelayUnavailable):
        await client.submit(await client.prepare("demo/text", "hello"))
    assert len(submissions(coordinator)) == 1


async def test_lost_submission_is_read_back_and_not_resent(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[Dropped()]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    coordinator.tell(f"GET /v1/jobs/{prepared.id}", Answer(200, job(prepared.id)))
    submitted = await client.submit(prepared)
    assert (submitted.job_id, submitted.task_cid, submitted.tx_hash) == (prepared.id, "bafytask", None)
    assert len(submissions(coordinator)) == 1


async def test_lost_submission_is_resent_if_the_job_is_absent(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[Dropped(), posted]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    assert (await client.submit(prepared)).tx_hash is not None
    first, second = submissions(coordinator)
    assert first.body == second.body
    assert f"GET /v1/jobs/{prepared.id}" in coordinator.routes()


@pytest.mark.parametrize(
    "answer",
    [Answer(502, b"<html>"), Answer(504, b"<html>"), failing(500, "internal_error")],
    ids=["502", "504", "500"],
)
async def test_possibly_successful_submission_is_read_back(coordinator: FakeCoordinator, answer: Answer) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[answer]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    coordinator.tell(f"GET /v1/jobs/{prepared.id}", Answer(200, job(prepared.id)))
    assert (await client.submit(prepared)).job_id == prepared.id
    assert len(submissions(coordinator)) == 1


@pytest.mark.parametrize("trouble", [Dropped(), failing(503, "not_ready", retryable=True)], ids=["away", "behind"])
async def test_unknown_order_is_reported_by_id_and_not_retryable(coordinator: FakeCoordinator, trouble: Told) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[Dropped()]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    coordinator.tell(f"GET /v1/jobs/{prepared.id}", trouble)
    with pytest.raises(OutcomeUnknown, match=prepared.id) as unknown:
        await client.submit(prepared)
    assert not unknown.value.retryable


async def test_answer_with_another_job_id_is_ignored(coordinator: FakeCoordinator) -> None:
    other = {"job_id": "0x" + "66" * 32, "task_cid": "bafytask", "tx_hash": "0x" + "cc" * 32}
    coordinator.tell(JOBS, in_turn(submitted=[Answer(201, other)]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    assert (await client.submit(prepared)).job_id == prepared.id


async def test_absent_coordinator_is_given_up_after_four_tries(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[Dropped()] * 9))
    client = coordinator.client()
    with pytest.raises(OutcomeUnknown):
        await client.submit(await client.prepare("demo/text", "hello"))
    assert len(submissions(coordinator)) == 4


async def test_job_of_an_earlier_attempt_is_found_after_a_refusal(coordinator: FakeCoordinator) -> None:
    coordinator.tell(JOBS, in_turn(submitted=[failing(409, "invalid_request_error", "DuplicateJob")]))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello")
    behind = failing(404, "not_found")  # the index lags the chain
    coordinator.tell(f"GET /v1/jobs/{prepared.id}", behind, behind, Answer(200, job(prepared.id)))
    assert (await client.submit(prepared)).job_id == prepared.id
    assert len(submissions(coordinator)) == 1


async def test_broadcast_without_receipt_is_followed_not_resent(coordinator: FakeCoordinator) -> None:
    tx_hash = "0x" + "dd" * 32
    coordinator.tell(JOBS, in_turn(submitted=[failing(504, "receipt_timeout", tx_hash)]))
    client = coordinator.client()
    submitted = await client.submit(await client.prepare("demo/text", "hello"))
    assert (submitted.mined, submitted.tx_hash, len(submissions(coordinator))) == (False, tx_hash, 1)


async def test_container_too_large_for_a_body_is_uploaded_and_named(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /auth/nonce", Answer(200, {"nonce": "ab" * 16, "expires_at": 1, "chain_id": 31337}))
    coordinator.tell("POST /auth/session", Answer(200, {"token": "t", "expires_at": int(time.time()) + 1000}))
    file = {"id": "f", "bytes": 1, "created_at": 1, "expires_at": 2, "filename": "f", "purpose": "input"}
    coordinator.tell("POST /v1/files", Answer(200, file | {"status": "uploaded", "svc": {"cid": "bafyc", "lines": 0}}))
    client = coordinator.client()
    await client.submit(await client.prepare("demo/text", "x" * MAX_INLINE_CONTAINER_BYTES), max_amount=10**7)
    (upload,), (submission,) = coordinator.to("POST /v1/files"), submissions(coordinator)
    assert upload.body.index(b'name="purpose"') < upload.body.index(b'name="file"')
    assert submission.body["container_cid"] == "bafyc"
    assert "container" not in submission.body


async def test_coordinators_clock_decides_when_an_order_expires(coordinator: FakeCoordinator) -> None:
    ahead = formatdate(time.time() + 600, usegmt=True)
    coordinator.tell("GET /v1/models/demo/text", Answer(200, MODEL, {"date": ahead}))
    client = coordinator.client()
    prepared = await client.prepare("demo/text", "hello", provider=7, rate_in=1)
    assert prepared.terms.expires_at - time.time() == pytest.approx(86_400 + 600, abs=5)


async def test_client_without_a_wallet_can_look_but_not_buy(coordinator: FakeCoordinator) -> None:
    client = coordinator.client(wallet_key=None)
    assert await client.probe("demo/text", "hello")
    with pytest.raises(OrderRefused) as refused:
        await client.prepare("demo/text", "hello")
    assert refused.value.message.startswith("no wallet: set SVC_WALLET_KEY_FILE")


async def test_window_the_chain_forbids_is_refused_before_signing(coordinator: FakeCoordinator) -> None:
    coordinator.tell(f"POST {NODE}/", FakeNode(windows=(300, 3_600)))
    floor = {"model_id": "1", "sla": "300", "rate_in": "1", "rate_out": "1"}
    coordinator.tell("GET /evm/asks/floors", Answer(200, {"floors": [floor], "as_of_block": "5"}))
    client = coordinator.client(rpc_url=NODE)
    with pytest.raises(OrderRefused, match="not allow a window of 2h: use 5m, 1h") as refused:
        await client.prepare("demo/text", "hello", window="2h", rate_in=1)
    assert (refused.value.code, refused.value.param) == ("window_not_allowed", "window")
    assert coordinator.to("POST /v1/jobs") == []
    assert (await client.market.windows("2h")).seconds == (300, 3_600)


async def test_unlisted_window_is_refused_after_a_fresh_read(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /evm/chain", Answer(200, DEPLOYMENT | {"windows": [300, 3_600]}))
    client = coordinator.client()
    with pytest.raises(OrderRefused, match="not allow a window of 2h: use 5m, 1h") as refused:
        await client.prepare("demo/text", "hello", window="2h", provider=7, rate_in=1)
    assert refused.value.code == "window_not_allowed"
    coordinator.tell("GET /evm/chain", Answer(200, DEPLOYMENT | {"windows": [300, 3_600, 7_200]}))
    prepared = await client.prepare("demo/text", "hello", window="2h", provider=7, rate_in=1)
    assert prepared.terms.sla_secs == 7_200


async def test_unusual_window_is_signed_as_an_hour_with_a_warning(coordinator: FakeCoordinator) -> None:
    with pytest.warns(OtherWindow, match="unknown window '7d' is signed as 1h"):
        prepared = await coordinator.client().prepare("demo/text", "hello", window="7d")
    assert prepared.terms.sla_secs == 3_600


async def test_run_without_a_gateway_is_refused_before_any_request(coordinator: FakeCoordinator) -> None:
    with pytest.raises(OrderRefused) as refused:
        await coordinator.client(gateways="").run("demo/text", "hello")
    assert refused.value.code == "reads_disabled"
    assert coordinator.asked == []
