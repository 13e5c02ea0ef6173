"""Answers of a peer, and everything that an attacker on the network could turn them into."""

import json
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from common.box import PublicKey
from common.daemon.secrets import Secret
from common.domains import Domains
from common.escrow_evidence import mock_measurement, report_data
from common.escrow_handover import HandedOverKey, handover_content
from common.messages.escrow import HandoverAuth, HandoverKeys
from common.scalars import base64_of
from coordinatord.api.escrow import peer
from coordinatord.api.escrow.generations import Generation
from coordinatord.api.escrow.handover import OperatorKeys
from coordinatord.api.escrow.keys import KeyPair, seal_secret
from coordinatord.api.escrow.peer import FailedPull, Peer
from tests.support.fakes.streamed import StreamedTransport, http_over
from tests.unit.coordinatord.environment import ENVIRONMENT

pytestmark = pytest.mark.anyio

DOMAINS = Domains.of(AddressBook.parse(ENVIRONMENT["ADDRESSES_JSON"].encode()))
OPERATORS = OperatorKeys.from_keys(DOMAINS, (Secret("0a" * 32), Secret("0b" * 32)))
SECOND_OPERATOR = OperatorKeys.from_keys(DOMAINS, (Secret("0b" * 32),))
STRANGER = OperatorKeys.from_keys(DOMAINS, (Secret("0c" * 32),))
NOW = 1_800_000_000
SECRET = bytes(range(32))

Answer = Callable[[dict[str, object]], httpx.Response]


def handed(
    request: dict[str, object],
    signer: OperatorKeys = SECOND_OPERATOR,
    *,
    asked_at: int = NOW,
    channel: PublicKey | None = None,
    **changed: object,
) -> httpx.Response:
    """Return the answer of an honest peer, with the given changes."""
    public = PublicKey(bytes.fromhex(str(request["channel_pubkey"])))
    signed = handover_content(3, [HandedOverKey(bytearray(SECRET), 7)])
    signature = signer.sign(HandoverKeys((channel or public).raw, asked_at, signed))
    sealed = seal_secret(public, signed + signature)
    return httpx.Response(200, json={"keys_sealed": base64_of(sealed), "key_count": 1, "holder_release": 3, **changed})


async def pull(answer: Answer) -> list[Generation] | FailedPull:
    def respond(request: httpx.Request) -> httpx.Response:
        return answer(json.loads(request.content))

    async with httpx.AsyncClient(transport=StreamedTransport(respond)) as http:
        return await Peer(http_over(http), "http://peer", OPERATORS, 3, lambda: NOW).pull_keys()


async def test_pull_brings_the_keys_that_the_holder_signed() -> None:
    pulled = await pull(handed)
    assert isinstance(pulled, list)
    assert [(one.public_key, one.announced_from_ms) for one in pulled] == [(KeyPair(bytearray(SECRET)).public.raw, 7)]


async def test_request_is_bound_to_its_channel_and_signed() -> None:
    requests: list[dict[str, object]] = []

    def answer(request: dict[str, object]) -> httpx.Response:
        requests.append(request)
        return handed(request)

    await pull(answer)
    await pull(answer)
    request, again = requests
    channel = PublicKey(bytes.fromhex(str(request["channel_pubkey"])))
    evidence = request["evidence"]
    assert isinstance(evidence, dict)
    assert evidence["report_data"] == report_data(channel).hex()
    assert evidence["measurement"] == mock_measurement(3).hex()
    assert (evidence["type"], evidence["debug"], evidence["release"]) == ("mock-coordinator-v1", False, 3)
    signature = bytes.fromhex(str(request["operator_signature"])[2:])
    assert OPERATORS.recover_signer(HandoverAuth(channel.raw, NOW), signature) == OPERATORS.signing_wallet.address
    assert request["channel_pubkey"] != again["channel_pubkey"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda request: handed(request, STRANGER), id="keys put in by a stranger"),
        pytest.param(lambda request: handed(request, asked_at=NOW - 60), id="an answer of an earlier time"),
        pytest.param(
            lambda request: handed(request, channel=KeyPair.generate().public), id="an answer to another channel"
        ),
        pytest.param(lambda request: handed(request, key_count=2), id="another count"),
        pytest.param(lambda request: handed(request, holder_release=4), id="another release"),
        pytest.param(
            lambda request: handed({"channel_pubkey": KeyPair.generate().public.raw.hex()}),
            id="sealed to another",
        ),
        pytest.param(
            lambda request: handed(
                request,
                keys_sealed=base64_of(
                    seal_secret(PublicKey(bytes.fromhex(str(request["channel_pubkey"]))), bytearray(9))
                ),
            ),
            id="sealed and no handover",
        ),
        pytest.param(lambda request: handed(request, keys_sealed="AB=="), id="base64 that is not canonical"),
        pytest.param(lambda _: httpx.Response(200, content=b"not JSON"), id="no JSON"),
        pytest.param(lambda _: httpx.Response(200, content=b'{"keys_sealed": "\xff"}'), id="no UTF-8"),
        pytest.param(lambda _: httpx.Response(200, content=b'{"a": ' + b"[" * 9999), id="deep nesting"),
        pytest.param(lambda _: httpx.Response(403, content=b'{"error": {"message": "\xff"}}'), id="garbled error"),
        pytest.param(lambda _: httpx.Response(200, content=bytes(5 << 20)), id="an endless answer"),
        pytest.param(lambda _: httpx.Response(503, headers={"x-svc-retryable": "true"}), id="trouble"),
        pytest.param(lambda _: httpx.Response(302, headers={"location": "http://elsewhere/"}), id="a redirection"),
    ],
)
async def test_answer_from_a_wrong_holder_is_ignored(answer: Answer) -> None:
    pulled = await pull(answer)
    assert isinstance(pulled, FailedPull)
    assert not pulled.is_final


async def test_refusal_of_the_peer_is_final_and_has_its_code() -> None:
    error = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "tombstoned"}}
    refusal = httpx.Response(403, headers={"x-svc-retryable": "false"}, json=error)
    assert await pull(lambda _: refusal) == FailedPull("the peer answers 403 tombstoned", is_final=True)


async def test_peer_that_does_not_answer_brings_nothing() -> None:
    def unreachable(_: dict[str, object]) -> httpx.Response:
        raise httpx.ConnectError("refused")

    assert await pull(unreachable) == FailedPull("the peer does not answer: ConnectError", is_final=False)


async def test_answer_that_trickles_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_PULL_TIMEOUT_S", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await anyio.sleep(0.01)

    with anyio.fail_after(10):
        pulled = await pull(lambda _: httpx.Response(200, content=trickle()))
    assert pulled == FailedPull("the peer answers too slowly", is_final=False)
