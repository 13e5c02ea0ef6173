"""Verdicts about a provider's situations that a run of a correct provider does not reach."""

import json
from typing import Any

import pytest

from common import abi, artifacts
from common.box import SecretKey
from common.contract_events import call_data, returned_values
from common.scalars import hex_of
from tests.conformance.market import Heard
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.serving import ServedRequest
from tests.conformance.situations import ROUNDS, again_at_once, signed_anew

JOB = "0x" + "0a" * 32
REFUSED = {"op": "settle", "job_id": JOB, "issued_at": 1_800_000_000, "signature": "0x11", "result": "AA=="}


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({**REFUSED, "issued_at": 1_800_000_001, "signature": "0x22"}, None),
        # An earlier time is correct for a clock that ran ahead. Another result is another op in the same second.
        ({**REFUSED, "issued_at": 1_799_999_000, "signature": "0x22"}, None),
        ({**REFUSED, "result": "AQ=="}, None),
        (REFUSED, "the refused settle again, byte for byte: issued_at 1800000000"),
    ],
)
def test_only_the_refused_bytes_again_are_wrong_after_stale_op(again: dict[str, Any], said: str | None) -> None:
    market = ProviderMarket()
    market.heard += [Heard(0.0, "settle", JOB, dict(REFUSED), 409), Heard(1.0, "settle", JOB, dict(again), 201)]
    [stale] = [one for situations in ROUNDS for one in situations if one.tried == "settle refused as stale"]
    assert stale.said == "settled, and no fail, signed anew with a new issued_at"
    assert signed_anew("settle")(stale, market, JOB) == said


@pytest.mark.parametrize(("waited", "said"), [(0.4, None), (31.0, "the claim again after 31 s")])
def test_claim_is_resent_after_sign_in_but_not_when_reoffered(waited: float, said: str | None) -> None:
    market = ProviderMarket()
    market.heard += [
        Heard(at, "claim", JOB, {"op": "claim"}, status) for at, status in ((5.0, 401), (5.0 + waited, 201))
    ]
    [forgotten] = [one for each in ROUNDS for one in each if one.tried == "claim with a session that is forgotten"]
    assert forgotten.expected.further is again_at_once
    assert again_at_once(forgotten, market, JOB) == said


@pytest.mark.parametrize(
    ("registry", "function", "words", "expected"),
    [
        ("JobRegistry", "fees", [], {"feeBps": 250, "gasFee": 2000}),
        ("ProviderRegistry", "provider", [abi.uint(7)], {"boxKey": SecretKey(b"\2" * 32).public.raw, "listed": True}),
    ],
)
@pytest.mark.anyio
async def test_node_of_the_market_answers_the_reads_of_a_provider(
    registry: str, function: str, words: list[bytes], expected: dict[str, object]
) -> None:
    market = ProviderMarket(box_key=SecretKey(b"\2" * 32).public)
    artifact = artifacts.load_artifact(registry)
    call = {"to": "0x" + "0a" * 20, "data": hex_of(call_data(artifact, function, *words))}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
    reply = await market.handle(ServedRequest("POST", "/rpc", {}, {}, json.dumps(asked).encode()))
    read = returned_values(artifact, function, bytes.fromhex(json.loads(reply.body)["result"][2:]))
    assert {name: read[name] for name in expected} == expected
