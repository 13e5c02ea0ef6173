"""Every reason for which a job ends without a settle, each caused by a real fault, and its consequences."""

import base64
import io
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import httpx
import pytest
import trio
from PIL import Image

from common.api.states import EndedBecause
from common.box import SecretKey
from common.canonical_json import canonical
from svcd.backends.discount import AskRates
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput
from tests.support.fakes.market import CLAIMED, Market
from tests.support.fakes.market_answers import answer, behind, error, instead, lost, unreached
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, count, model_for


@attrs.frozen
class Case:
    """`prepare` posts a job in a market. `state` is the job's final state on the chain (0 to 3)."""

    reason: str
    prepare: Callable[[Market], str]
    backend: Callable[[ModelWork], Awaitable[WorkOutput]] | None = None
    configured: dict[str, Any] = attrs.field(factory=dict)
    fails: bool = True  # a signed fail is sent, and refunds the client


def posted(**changed: Any) -> Callable[[Market], str]:
    return lambda market: market.post(**changed)


def scripted(name: str, *scripts: Any, always: bool = False, **changed: Any) -> Callable[[Market], str]:
    def prepare(market: Market) -> str:
        if always:
            market.always[name] = scripts[0]
        market.scripts[name] += [] if always else scripts
        return market.post(**changed)

    return prepare


def payload(plaintext: Callable[[Market], bytes]) -> Callable[[Market], str]:
    return lambda market: market.post(market.container(plaintext(market)))


def raising(reason: str, *, backend_fault: bool = False) -> Callable[[ModelWork], Awaitable[WorkOutput]]:
    async def act(_: ModelWork) -> WorkOutput:
        raise WorkFailed(reason, backend_fault=backend_fault)

    return act


async def never(_: ModelWork) -> WorkOutput:
    await trio.sleep_forever()
    raise AssertionError


async def broken(_: ModelWork) -> WorkOutput:
    raise ZeroDivisionError


async def large(_: ModelWork) -> WorkOutput:
    return WorkOutput("x" * 16_000_000, 1)


async def unwritable(_: ModelWork) -> WorkOutput:
    deep: object = "bottom"
    for _level in range(40):
        deep = [deep]
    return WorkOutput(deep, 1)


def cut(market: Market) -> str:
    container = market.container()
    return market.post(container, served=container[:-1])


def flipped(market: Market) -> str:
    container = bytearray(market.container())
    container[-1] ^= 1
    return market.post(bytes(container))


def for_another(market: Market) -> str:
    """Post a job designated to another provider. The coordinator offered it to an earlier run, and the chain
    accepted that run's claim."""
    job = market.post(designated="8")
    market.claim(job)
    return job


def open_job(market: Market, **changed: Any) -> str:
    return market.post(market.container(recipient=market.escrow.public), designated="0", **changed)


def open_with(name: str, script: Any) -> Callable[[Market], str]:
    def prepare(market: Market) -> str:
        market.always[name] = script
        return open_job(market)

    return prepare


def image(market: Market) -> str:
    """Post an image of 16 × 16 that was declared, and paid for, as 8 × 8."""
    stored = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stored, "PNG")
    asset = {"b64": base64.b64encode(stored.getvalue()).decode(), "media_type": "image/png", "width": 8, "height": 8}
    request = {"prompt": "p", "width": 8, "height": 8, "image": asset}
    plaintext = market.envelope(request, model="demo/image").encode()
    return market.post(market.container(plaintext), model_id="3")


def recovered(**changed: Any) -> Callable[[Market], str]:
    def prepare(market: Market) -> str:
        job = market.post(**changed)
        market.claim(job)
        return job

    return prepare


def recovered_after(seconds: int) -> Callable[[Market], str]:
    def prepare(market: Market) -> str:
        job = market.post()
        market.claim(job, ago=seconds)
        return job

    return prepare


def queued(market: Market) -> str:
    """Post a job that waits for a slot behind another."""
    for n in range(2):
        job = market.post(market.container(market.envelope({"input": str(n)}).encode()))
        market.claim(job)  # equally urgent: the job that came first runs first
    return job


ONE_SLOT = model_for("demo/text", {"text"}, slots=1)


def ambiguous(market: Market) -> str:
    return market.post(market.container(market.envelope({"prompt": "bare"}).encode()))


CASES = {
    "backend refuses": Case("backend_error", posted(), raising("backend_error")),
    "output cannot be sealed": Case("backend_error", posted(), unwritable),
    "every attempt fails": Case("backend_exhausted", posted(), raising("backend_exhausted", backend_fault=True)),
    "backend sees no time for its next wait": Case("deadline_wait", posted(), raising("deadline_wait")),
    "no time is left when a slot is": Case("deadline_wait", queued, never, configured={"models": (ONE_SLOT,)}),
    "picture is larger than declared": Case("media_input_refused", image),
    "backend is not done in time": Case("sla_abandon", posted(), never, fails=False),
    "daemon has a bug": Case("internal_error", posted(), broken, fails=False),
    "container of no length": Case("too_short", lambda market: market.post(b"\x01" * 50)),
    "container of another version": Case("bad_version", lambda market: market.post(b"\x02" + market.container()[1:])),
    "container of a length that none has": Case(
        "bad_container", lambda market: market.post(market.container(b"x" * 65_537)[:-8])
    ),
    "another container is served": Case("commitment_mismatch", cut),
    "ciphertext is not what was sealed": Case("undecryptable", flipped),
    "payload is no envelope": Case("malformed_envelope", payload(lambda _: canonical({"v": 2}))),
    "envelope of a stranger": Case(
        "owner_mismatch", payload(lambda market: market.envelope(owner=b"\x09" * 20).encode())
    ),
    "text is longer than was paid for": Case(
        "units_in_short", payload(lambda market: market.envelope({"input": "x" * 5000}).encode())
    ),
    "sealed to another's box key": Case(
        "unseal_failed", lambda market: market.post(market.container(recipient=SecretKey(b"\x77" * 32).public))
    ),
    "designated to another": Case("not_our_bid", for_another),
    "recovered without the box key": Case("no_cipher", recovered(), configured={"box": None}),
    "coordinator without escrow": Case(
        "escrow_unavailable", open_with("release", instead(error(403, "escrow_unavailable")))
    ),
    "escrow does not answer": Case("escrow_unreachable", open_with("release", unreached())),
    "escrow is overrun": Case(
        "escrow_unreachable", open_with("release", instead(error(429, None, "busy", retryable=True)))
    ),
    "escrow cannot read the chain": Case(
        "escrow_unreachable", open_with("release", instead(error(503, "job_read", retryable=True)))
    ),
    **{
        f"escrow says {code}": Case(code, open_with("release", instead(error(status, code))))
        for status, code in (
            (400, "stale_issued_at"),
            (400, "wrap_mismatch"),
            (403, "wrong_wallet"),
            (404, "no_claim"),
            (409, "not_claimed"),
            (410, "escrow_key_lost"),
        )
    },
    "escrow holds no key that opens it": Case(
        "unseal_failed",
        lambda market: market.post(market.container(recipient=SecretKey(b"\x77" * 32).public), designated="0"),
    ),
    "nothing tells what it is": Case(
        "modality_unknown", ambiguous, configured={"models": (model_for("demo/text", {"image", "video"}),)}
    ),
    "container is nowhere": Case("task_unresolved", recovered(task_cid="bafknowhere")),
    "recovered after its SLA": Case("claim_expired", recovered_after(601)),
    "recovered within its SLA's margin": Case("claim_expired", recovered_after(575)),
    "recovered for a model that is gone": Case(
        "unservable", recovered(), configured={"models": (model_for("demo/image", {"image"}),)}
    ),
    "payload for another model than the order": Case(
        "unservable", payload(lambda market: market.envelope(model="demo/image").encode())
    ),
    "chain refuses the settle": Case(
        "settle_TooManyUnits",
        scripted("settle", instead(answer(409, {"ok": False, "reason": "TooManyUnits"}))),
        fails=False,
    ),
    "registries do not know the signer": Case(
        "settle_rejected", scripted("settle", instead(error(403, None, "invalid_op_signature")))
    ),
    "settle is mined and reverts, again and again": Case(
        "settle_reverted",
        scripted(
            "settle", instead(answer(201, {"tx_hash": "0x00", "status": "reverted", "block_number": "1"})), always=True
        ),
    ),
    "upload is answered without a content id": Case(
        "settle_upload_invalid", scripted("files", instead(answer(200, {"id": "file"}))), large
    ),
    "result is larger than the coordinator takes": Case(
        "settle_result_too_large", scripted("settle", instead(error(413, "body_too_large")))
    ),
    "upload is larger than the coordinator takes": Case(
        "settle_result_too_large", scripted("files", instead(error(413, "file_too_large"))), large
    ),
    "coordinator refuses the settle": Case("settle_http_400", scripted("settle", instead(error(400, None)))),
    "coordinator cannot relay until the SLA is over": Case(
        "settle_http_503",
        scripted("settle", instead(error(503, "relayer_funds", "relay_unavailable", retryable=True)), always=True),
    ),
    "settle stays without a receipt": Case(
        "settle_http_504", scripted("settle", instead(error(504, "0xab", "receipt_timeout")), always=True)
    ),
    "coordinator does not answer the settle": Case(
        "settle_transport_error", scripted("settle", unreached(), always=True)
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
async def test_job_ends_with_its_reason_and_its_slot_is_free(case: Case, market: Market, start: Start) -> None:
    counted = count("svcd_jobs_failed_total", reason=case.reason)
    job = case.prepare(market)
    async with start(backend=Backend(case.backend), **case.configured) as running:
        assert await running.end_of(job) == ("failed" if case.fails else "given_up", case.reason)
        assert running.ground.slots.held_slots == 0
    assert count("svcd_jobs_failed_total", reason=case.reason) == counted + 1
    row = market.jobs[job]
    assert (row["state"], row["ended_because"]) == ((3, 3) if case.fails else (1, 0))


async def test_settle_without_a_sign_in_is_not_sent(market: Market, start: Start) -> None:
    """The session is lost during the work, and the next sign-in is refused. The fail is sent once sign-in works
    again."""

    async def work_and_lose_session(work: ModelWork) -> WorkOutput:
        market.sessions.clear()
        market.always["session"] = instead(error(403, "not_registered"))
        return WorkOutput(work.input, 1)

    job = market.post()
    async with start(backend=Backend(work_and_lose_session)) as running:
        await running.until(lambda: running.entry(job) == ("failing", "session_http_403"))
        del market.always["session"]
        assert await running.end_of(job) == ("failed", "session_http_403")
    assert market.jobs[job]["ended_because"] == EndedBecause.PROVIDER_FAIL
    assert job not in market.results


async def test_withheld_key_fails_the_job_within_300_seconds(market: Market, start: Start) -> None:
    """The limit is independent of the job's window, which is a day here."""
    market.always["release"] = instead(error(503, "job_read", retryable=True))
    job = open_job(market, sla_secs="86400")
    offered = model_for("demo/text", {"text"}, asks={86_400: AskRates(100, 200)})
    async with start(models=(offered,)) as running:
        began = trio.current_time()
        assert await running.end_of(job) == ("failed", "escrow_unreachable")
        assert trio.current_time() - began < 300


@pytest.mark.parametrize("op", ["settle", "claim"])
async def test_op_with_a_lost_answer_is_looked_up(op: str, market: Market, start: Start) -> None:
    market.scripts[op].append(lost())
    job = market.post()
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)
    assert len(running.backend.ran) == 1


async def test_job_settles_after_its_claim_survives_a_reorg(market: Market, start: Start) -> None:
    async def unmade(_: Callable[[], httpx.Response]) -> httpx.Response:
        market.jobs[job] |= {"state": 0, "provider_id": "0", "claimed_at": "0"}
        return answer(409, {"ok": False, "reason": "NotClaimed"})

    async def made_again(perform: Callable[[], httpx.Response]) -> httpx.Response:
        market.jobs[job] |= claimed
        return perform()

    async def work(_: ModelWork) -> WorkOutput:
        claimed.update({name: market.jobs[job][name] for name in ("state", "provider_id", "claimed_at")})
        return WorkOutput("done", 1)

    claimed: dict[str, object] = {}
    job = market.post()
    market.scripts["settle"] += [unmade, instead(answer(409, {"ok": False, "reason": "UnknownJob"})), made_again]
    async with start(backend=Backend(work)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.calls.count("claim") == 1


async def test_stale_settle_and_fail_are_signed_again(market: Market, start: Start) -> None:
    stale = instead(answer(409, {"ok": False, "reason": "StaleOp"}))
    good, bad = market.post(), market.post(market.container(canonical({"v": 2})))
    market.scripts["settle"] += [stale, stale]
    market.scripts["fail"] += [stale, stale]
    async with start() as running:
        assert await running.end_of(good) == ("settled", None)
        assert await running.end_of(bad) == ("failed", "malformed_envelope")
    assert (market.calls.count("settle"), market.calls.count("fail")) == (3, 3)


async def test_key_is_requested_again_while_the_claim_may_appear(market: Market, start: Start) -> None:
    market.scripts["release"] += [
        instead(error(404, "no_claim", "not_found")),
        instead(error(409, "not_claimed")),
        instead(error(400, "stale_issued_at")),
    ]
    job = open_job(market)
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)


async def test_settle_counts_though_its_resend_is_refused(market: Market, start: Start) -> None:
    market.scripts["settle"].append(lost())
    market.scripts["job"] += [behind(state=CLAIMED)] * 3
    job = market.post()
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.calls.count("settle") == 1 + 3  # the lost one, and one for each look at a lagging index


async def test_late_settle_counts_before_a_fail(market: Market, start: Start) -> None:
    async def late(perform: Callable[[], httpx.Response]) -> httpx.Response:
        market.end(job, 1)
        return answer(409, {"ok": False, "reason": "NotClaimed"})

    job = scripted("settle", instead(error(400, None)))(market)
    market.scripts["fail"].append(late)
    market.scripts["job"] += [behind(state=CLAIMED)] * 3  # the index lags
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)


async def test_rejected_fail_frees_the_slot(market: Market, start: Start) -> None:
    market.always["fail"] = unreached()
    job = market.post(market.container(canonical({"v": 2})))
    async with start() as running:
        assert await running.end_of(job) == ("given_up", "malformed_envelope")
