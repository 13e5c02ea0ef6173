"""Batches against a scripted coordinator."""

import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from common.box import SecretKey
from common.container import open_with_secret
from common.envelope import Envelope, ResultBody
from common.escrow_evidence import report_data
from common.scalars import read_base64
from common.sealed_result import seal_result
from svc.batches import offers
from svc.client import Client
from svc.core.typed_data import SigningRequest
from svc.errors import (
    BatchFailed,
    ConnectionFailed,
    OrderRefused,
    OutcomeUnknown,
    PlanShort,
    QuoteRefused,
    RelayUnavailable,
    ResultUnreadable,
    WaitTimedOut,
)
from svc.signers import RemoteSigner
from tests.unit.svc.fake_coordinator import (
    BOX_SECRET,
    CANDIDATE,
    FEE_BPS,
    GAS_FEE,
    JOB_REGISTRY,
    WALLET,
    Answer,
    Dropped,
    FakeCoordinator,
    failing,
    job,
    provider,
    quoting,
)

REGISTRY = bytes.fromhex(JOB_REGISTRY[2:])
RATED = {"model": "demo/text", "rate_in": "1000000", "rate_out": 2_000_000, "max_tokens": 5}
FILE = {
    **{"id": "f1", "bytes": 1, "created_at": 1, "expires_at": 2, "filename": "f", "purpose": "batch"},
    **{"status": "uploaded", "svc": {"cid": "bafyf", "lines": 1}},
}


def batch(status: str = "validating", **changed: Any) -> dict[str, Any]:
    return {
        **{"id": "b1", "object": "batch", "endpoint": "/v1/responses", "input_file_id": "f1"},
        **{"completion_window": "1h", "status": status, "created_at": 1, "expires_at": int(time.time()) + 3600},
        **{"request_counts": {"completed": 0, "failed": 0, "total": 1}, "svc": {"sla": "1h"}, "metadata": {}},
        **changed,
    }


def line(number: int, **body: object) -> dict[str, Any]:
    return {"custom_id": f"c{number}", "body": {**RATED, "input": f"text {number}", **body}}


@pytest.fixture
def coordinator() -> FakeCoordinator:
    public = SecretKey(b"\x09" * 32).public
    evidence = {"type": "static-coordinator-v1", "report_data": report_data(public).hex(), "debug": False, "release": 1}
    return FakeCoordinator(
        {
            "POST /v1/jobs": [quoting()],
            "GET /auth/nonce": [Answer(200, {"nonce": "ab" * 16, "expires_at": 1, "chain_id": 31337})],
            "POST /auth/session": [Answer(200, {"token": "t", "expires_at": int(time.time()) + 5000})],
            "GET /key": [Answer(200, {"escrow_public_key": public.raw.hex(), "evidence": evidence, "issued_at": 1})],
            "POST /v1/files": [Answer(200, FILE)],
            "POST /v1/batches": [Answer(200, batch())],
        }
    )


def submissions(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(text) for text in content.splitlines()]


def opened(submission: dict[str, Any], secret: SecretKey = BOX_SECRET) -> Envelope:
    container = read_base64(submission["container"], 10**6, "container")
    return Envelope.parse(open_with_secret(secret, 31337, REGISTRY, WALLET.address, container))


async def test_lines_become_whole_submissions_priced_by_one_quote(coordinator: FakeCoordinator) -> None:
    prepared = await coordinator.client().batches.prepare([line(n) for n in range(3)], window="1h", providers=[7])
    written = submissions(prepared.content)
    assert coordinator.routes().count("POST /v1/jobs") == 1
    assert [one["job_id"] for one in written] == list(prepared.job_ids)
    assert [opened(one).input["input"] for one in written] == ["text 0", "text 1", "text 2"]
    assert [opened(one).custom_id for one in written] == list(prepared.custom_ids.values()) == ["c0", "c1", "c2"]
    caps = [-(-(10**6 * one["units_in"] + 2 * 10**6 * one["units_out"]) // 10**6) for one in written]
    amounts = [cap + cap * FEE_BPS // 10_000 + GAS_FEE for cap in caps]
    assert [int(one["amount"]) for one in written] == amounts
    assert prepared.amount == sum(amounts)
    assert {one["designated"] for one in written} == {7}
    assert "rate_in" not in opened(written[0]).input


async def test_rated_lines_without_providers_are_sealed_to_escrow(coordinator: FakeCoordinator) -> None:
    prepared = await coordinator.client().batches.prepare([line(1)], window="24h")
    (written,) = submissions(prepared.content)
    assert (written["designated"], written["sla_secs"]) == (0, 86_400)
    assert opened(written, SecretKey(b"\x09" * 32)).input["input"] == "text 1"


async def test_lines_without_rates_are_planned_before_signing(coordinator: FakeCoordinator) -> None:
    share = {**CANDIDATE, "lines": "1"}
    short = {"plan": [{"model_id": "1", "lines": "2", "allocation": [share]}]}
    coordinator.tell("POST /v1/batches", Answer(402, short))
    lines = [{"body": {"model": "demo/text", "input": str(n)}} for n in range(2)]
    with pytest.raises(PlanShort):
        await coordinator.client().batches.prepare(lines, window="1h")
    assert "POST /v1/jobs" not in coordinator.routes()
    (asked,) = coordinator.to("POST /v1/batches")
    assert asked.body["models"] == [{"model_id": 1, "lines": 2, "units_in": 8, "units_out": 8192}]


async def test_remote_wallet_signs_each_line(coordinator: FakeCoordinator) -> None:
    signer = RemoteSigner(WALLET.address, by_digest=WALLET.sign, deterministic=True)
    client = coordinator.client(wallet_key=None, signer=signer)
    prepared = await client.batches.prepare([line(1), line(2)], window="1h", providers=[7])
    assert [opened(one).input["input"] for one in submissions(prepared.content)] == ["text 1", "text 2"]


async def test_many_lines_keep_their_order_and_report_progress(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "MIN_LINES_PER_GROUP", 2)
    done: list[int] = []
    prepared = await coordinator.client().batches.prepare(
        [line(n) for n in range(41)], window="1h", providers=[7], progress=done.append
    )
    assert [opened(one).custom_id for one in submissions(prepared.content)] == [f"c{n}" for n in range(41)]
    assert done == [*range(2, 41, 2), 41]


async def test_first_of_several_bad_lines_is_named(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "MIN_LINES_PER_GROUP", 2)
    bad = line(13, prompt="nul \x00")
    lines = [*(line(n) for n in range(12)), bad, bad | {"custom_id": "c14"}, line(15), "{broken"]
    with pytest.raises(OrderRefused, match="line 13"):
        await coordinator.client().batches.prepare(lines, window="1h", providers=[7])


@pytest.mark.parametrize("number", [1, 2, 4], ids=["before", "among", "after"])
async def test_bad_rated_line_is_named_before_planning(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(offers, "MIN_LINES_PER_GROUP", 2)
    unrated = {"body": {"model": "demo/text", "input": "x"}}
    lines = [line(1), line(2), unrated, line(4)]
    lines[number - 1] = line(number, max_tokens="many")
    with pytest.raises(OrderRefused, match=f"line {number}: "):
        await coordinator.client().batches.prepare(lines, window="1h", providers=[7])
    assert "POST /v1/batches" not in coordinator.routes()


async def test_unrated_lines_keep_the_order_of_the_file(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "MIN_LINES_PER_GROUP", 2)
    share = {**CANDIDATE, "lines": "1"}
    coordinator.tell(
        "POST /v1/batches", Answer(402, {"plan": [{"model_id": "1", "lines": "1", "allocation": [share]}]})
    )
    coordinator.tell("GET /evm/providers/8", Answer(200, provider(provider_id="8")))
    unrated = {"custom_id": "c3", "body": {"model": "demo/text", "input": "text 3"}}
    lines = [line(0), line(1), line(2), unrated, line(4)]
    prepared = await coordinator.client().batches.prepare(lines, window="1h", providers=[7, 8])
    written = submissions(prepared.content)
    assert [opened(one).custom_id for one in written] == [f"c{n}" for n in range(5)]
    assert [one["designated"] for one in written] == [7, 8, 7, int(share["provider_id"]), 8]


async def test_line_above_the_ceiling_is_named_and_never_signed_for(coordinator: FakeCoordinator) -> None:
    purposes: list[str] = []

    class Recording:
        address, deterministic = WALLET.address, True

        async def sign(self, request: SigningRequest) -> bytes:
            purposes.append(request.purpose)
            return WALLET.sign(request.digest)

    dear = {"body": {"model": "demo/text", "input": "x", "rate_in": 10**9, "rate_out": 10**9}}
    client = coordinator.client(signer=Recording())
    with pytest.raises(
        OrderRefused, match=r"line 2: the line costs up to .* above the default ceiling of 1 Dev Dollar"
    ) as over:
        await client.batches.prepare([line(0), dear], window="1h", providers=[7])
    assert over.value.code == "over_max_amount"
    assert purposes.count("payment") <= 1  # the payment of the first line
    with pytest.raises(QuoteRefused, match=r"the batch costs up to .* above the ceiling of 0\.00"):
        await coordinator.client(max_batch_amount=5_000).batches.prepare([line(n) for n in range(9)], window="1h")


async def test_remote_wallet_signs_only_after_all_checks(coordinator: FakeCoordinator) -> None:
    asked: list[bytes] = []

    def sign(digest: bytes) -> bytes:
        asked.append(digest)
        return WALLET.sign(digest)

    signer = RemoteSigner(WALLET.address, by_digest=sign)
    client = coordinator.client(wallet_key=None, signer=signer, cipher_key="ab" * 32)
    with pytest.raises(OrderRefused, match="line 2"):
        await client.batches.prepare([line(1), line(2, max_tokens="many")], window="1h", providers=[7])
    assert asked == []


async def test_line_that_cannot_be_sealed_is_named(coordinator: FakeCoordinator) -> None:
    lines = [line(1), line(2, width=8, height=8, max_tokens=None, prompt="nul \x00")]
    with pytest.raises(OrderRefused, match="line 2"):
        await coordinator.client().batches.prepare(lines, window="1h", providers=[7])


async def test_batch_over_the_callers_bound_is_not_made(coordinator: FakeCoordinator) -> None:
    client = coordinator.client()
    prepared = await client.batches.prepare([line(1)], window="1h", providers=[7])
    with pytest.raises(QuoteRefused) as refused:
        await client.batches.prepare([line(1)], window="1h", providers=[7], max_amount=prepared.amount - 1)
    assert refused.value.code == "over_max_amount"


async def test_lines_are_read_from_a_file(coordinator: FakeCoordinator, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    await anyio.Path(path).write_text(f"{json.dumps(line(1))}\n\n{json.dumps(line(2))}\n")
    assert (await coordinator.client().batches.prepare(path, window="1h", providers=[7])).lines == 2


async def created(client: Client) -> Any:
    prepared = await client.batches.prepare([line(1)], window="1h", providers=[7])
    return await client.batches.create(prepared, metadata={"run": "1"})


async def test_batch_is_created_from_its_upload(coordinator: FakeCoordinator) -> None:
    assert (await created(coordinator.client())).id == "b1"
    (asked,) = coordinator.to("POST /v1/batches")
    assert asked.body == {
        "input_file_id": "f1",
        "endpoint": "/v1/responses",
        "completion_window": "1h",
        "metadata": {"run": "1"},
    }


@pytest.mark.parametrize("route", ["POST /v1/files", "POST /v1/batches"])
async def test_upload_and_creation_are_not_retried_on_errors(coordinator: FakeCoordinator, route: str) -> None:
    coordinator.tell(route, failing(503, "relay_unavailable", retryable=True))
    with pytest.raises(RelayUnavailable):
        await created(coordinator.client())
    assert len(coordinator.to(route)) == 1


@pytest.mark.parametrize("listed", [True, False])
async def test_lost_creation_is_looked_up_before_a_retry(coordinator: FakeCoordinator, listed: bool) -> None:
    coordinator.tell("POST /v1/batches", Dropped(), Answer(200, batch()))
    page = {"data": [batch()] if listed else [], "first_id": None, "last_id": None, "has_more": False}
    coordinator.tell("GET /v1/batches", Answer(200, page))
    assert (await created(coordinator.client())).id == "b1"
    asked = coordinator.to("POST /v1/batches")
    assert len(asked) == (1 if listed else 2)
    assert len({one.headers["idempotency-key"] for one in asked}) == 1


async def test_unknown_creation_is_not_reported_as_retryable(coordinator: FakeCoordinator) -> None:
    coordinator.tell("POST /v1/batches", Dropped())
    coordinator.tell("GET /v1/batches", failing(503, "not_ready", retryable=True))
    with pytest.raises(OutcomeUnknown, match="unknown whether the batch") as unknown:
        await created(coordinator.client())
    assert not unknown.value.retryable


async def test_lost_upload_is_returned_to_the_caller(coordinator: FakeCoordinator) -> None:
    coordinator.tell("POST /v1/files", Dropped())
    with pytest.raises(ConnectionFailed):
        await created(coordinator.client())
    assert len(coordinator.to("POST /v1/files")) == 1


@pytest.mark.parametrize(
    "metadata",
    [{str(n): "" for n in range(17)}, {"k" * 65: "v"}, {"k": "v" * 513}, {"k": 5}],
    ids=["pairs", "key", "value", "type"],
)
async def test_metadata_over_a_limit_is_refused_before_the_upload(
    coordinator: FakeCoordinator, metadata: dict[str, Any]
) -> None:
    client = coordinator.client()
    prepared = await client.batches.prepare([line(1)], window="1h", providers=[7])
    with pytest.raises(OrderRefused) as refused:
        await client.batches.create(prepared, metadata=metadata)
    assert str(refused.value.param).startswith("metadata")
    assert "POST /v1/files" not in coordinator.routes()


@pytest.mark.parametrize(("asked", "every"), [({}, 60.0), ({"every": 5.0}, 5.0)])
async def test_batch_is_polled_every_minute_or_as_configured(
    asked: dict[str, float], every: float, coordinator: FakeCoordinator
) -> None:
    async def quiet() -> AsyncIterator[bytes]:
        yield b": a stream that tells nothing\n\n"
        await anyio.sleep_forever()

    states = ["validating", "in_progress", "finalizing", "completed"]
    coordinator.tell("GET /v1/batches/b1", *[Answer(200, batch(status)) for status in states])
    coordinator.tell("GET /v1/batches/b1/events", Answer(200, quiet(), {"content-type": "text/event-stream"}))
    seen: list[str] = []
    ended = await coordinator.client().batches.wait("b1", progress=lambda batch: seen.append(batch.status), **asked)
    assert (ended.status, seen) == ("completed", states)
    times = [asked.at for asked in coordinator.to("GET /v1/batches/b1")]
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([every] * 3)


async def test_unreachable_coordinator_is_waited_for(coordinator: FakeCoordinator) -> None:
    away = failing(503, "not_ready", retryable=True)
    coordinator.tell("GET /v1/batches/b1", *[away] * 9, Answer(200, batch("completed")))
    assert (await coordinator.client().batches.wait("b1")).status == "completed"


async def test_wait_lasts_for_the_rest_of_the_window(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /v1/batches/b1", Answer(200, batch("in_progress", expires_at=int(time.time()) + 600)))
    began = anyio.current_time()
    with pytest.raises(WaitTimedOut):
        await coordinator.client().batches.wait("b1")
    assert anyio.current_time() - began == pytest.approx(660, abs=5)


async def test_wait_for_a_batch_is_capped(coordinator: FakeCoordinator) -> None:
    """A coordinator may report an expiry that is centuries ahead."""
    running = Answer(200, batch("in_progress", expires_at=10**10))
    coordinator.tell("GET /v1/batches/b1", *[running] * 2000, Answer(200, batch("completed")))
    began = anyio.current_time()
    with pytest.raises(WaitTimedOut):
        await coordinator.client().batches.wait("b1")
    assert anyio.current_time() - began == pytest.approx(86_400 + 60, abs=5)


async def test_running_batch_has_no_results_yet(coordinator: FakeCoordinator) -> None:
    coordinator.tell("GET /v1/batches/b1", Answer(200, batch("in_progress")))
    with pytest.raises(ResultUnreadable) as refused:
        _ = [one async for one in coordinator.client().batches.results("b1")]
    assert refused.value.code == "no_result"


async def test_results_without_any_key_to_open_them_are_refused_once(coordinator: FakeCoordinator) -> None:
    signer = RemoteSigner(WALLET.address, by_digest=WALLET.sign)
    client = coordinator.client(wallet_key=None, signer=signer)
    coordinator.tell("GET /v1/batches/b1", Answer(200, batch("completed", output_file_id="out")))
    with pytest.raises(OrderRefused) as refused:
        _ = [one async for one in client.batches.results("b1")]
    assert refused.value.param == "SVC_CIPHER_KEY"


async def test_results_come_in_file_order_settled_lines_first(coordinator: FakeCoordinator) -> None:
    client = coordinator.client(gateways="http://gateway")
    key = (await client._account.result_keys())[0].public
    outputs = []
    for n in (1, 2):
        raw = bytes((n,)) * 32
        sealed = seal_result(key, 31337, REGISTRY, raw, ResultBody(raw, f"out {n}", {}).encode())
        coordinator.tell(f"GET http://gateway/ipfs/bafy{n}", Answer(200, sealed if n == 1 else b"\x01" * 300))
        ended = job("0x" + raw.hex(), "completed", result_cid=f"bafy{n}", completion_tok="3", state=2)
        coordinator.tell(f"GET /v1/jobs/0x{raw.hex()}", Answer(200, ended))
        told = {"job_id": "0x" + raw.hex(), "result_cid": f"bafy{n}", "provider": 7}
        rates = {"rate_in": "1", "rate_out": "1", "completion_tok": 3}
        outputs.append({"id": f"batch_req_b1_{n}", "custom_id": None, "error": None, "svc": told | rates})
        outputs[-1]["response"] = {"status_code": 200, "request_id": "0x" + raw.hex(), "body": None}
    failed = {
        **{"id": "batch_req_b1_3", "custom_id": None, "response": None, "svc": {"job_id": None, "line": 3}},
        "error": {"code": "invalid_line", "message": "m"},
    }
    files = {"out": outputs, "err": [failed]}
    for name, lines in files.items():
        text = "".join(json.dumps(one) + "\n" for one in lines)
        coordinator.tell(f"GET /v1/files/{name}/content", Answer(200, text.encode()))
    ended_batch = batch("completed", output_file_id="out", error_file_id="err")
    coordinator.tell("GET /v1/batches/b1", Answer(200, ended_batch))
    results = [one async for one in client.batches.results("b1", custom_ids={1: "mine"})]
    assert [(one.custom_id, one.result.output if one.result else None) for one in results] == [
        ("mine", "out 1"),
        (None, None),
        (None, None),
    ]
    assert [one.error.code if one.error else None for one in results] == [None, "unseal_failed", "invalid_line"]


async def test_batch_whose_input_was_refused_says_why(coordinator: FakeCoordinator) -> None:
    errors = {"object": "list", "data": [{"code": "object_missing", "message": "gone", "param": None, "line": None}]}
    coordinator.tell("GET /v1/batches/b1", Answer(200, batch("failed", errors=errors)))
    with pytest.raises(BatchFailed, match="gone") as failed:
        _ = [one async for one in coordinator.client().batches.results("b1")]
    assert failed.value.code == "object_missing"
