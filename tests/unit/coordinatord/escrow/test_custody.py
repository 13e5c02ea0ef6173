"""Custody of escrow keys: generations, key material, what logs show of it, and keys pulled from a peer."""

import base64
import json
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import attrs
import httpx
import pytest
import structlog

from common import box
from common.address_book import AddressBook
from common.box import PublicKey
from common.daemon.logs import set_up_logging
from common.daemon.secrets import Secret
from common.domains import Domains
from common.escrow_evidence import mock_measurement, report_data
from common.escrow_handover import HandedOverKey, handover_content
from common.key_derivation import escrow_key
from common.messages.escrow import HandoverAuth, HandoverKeys
from common.scalars import base64_of
from coordinatord.api.escrow import peer
from coordinatord.api.escrow.custody import (
    AnnouncedKey,
    DevelopmentEvidence,
    KeyEvidence,
    StaticCustody,
    announced_key,
    mock_evidence,
)
from coordinatord.api.escrow.generations import RETENTION_MS, Generation, Generations
from coordinatord.api.escrow.handover import OperatorKeys
from coordinatord.api.escrow.keys import KeyPair, open_with_any, seal_secret, wipe
from coordinatord.api.escrow.peer import FailedPull, Peer
from coordinatord.base.errors import Retryable
from tests.support.fakes.streamed import StreamedTransport, http_over
from tests.unit.coordinatord.environment import ENVIRONMENT

SECRET = bytes(range(100, 132))


@pytest.fixture
def keys() -> tuple[KeyPair, ...]:
    return KeyPair.generate(), KeyPair.generate(), KeyPair.generate()


class Unminted(StaticCustody):
    def current_key(self) -> PublicKey | None:
        return None


def test_first_key_is_announced_with_current_evidence(
    keys: tuple[KeyPair, ...],
) -> None:
    public = keys[0].public
    evidence = KeyEvidence("static-coordinator-v1", report_data(public), debug=False, release=7)
    assert announced_key(StaticCustody(keys, 7), lambda: 1_800_000_000.9) == AnnouncedKey(
        public, evidence, 1_800_000_000
    )


def test_nothing_is_announced_before_the_first_key(keys: tuple[KeyPair, ...]) -> None:
    with pytest.raises(Retryable) as trouble:
        announced_key(Unminted(keys, 7), lambda: 0)
    assert attrs.astuple(trouble.value) == (
        "not_ready", "this escrow has no keys yet; try again", "escrow_key_unminted", 1
    )  # fmt: skip


async def test_every_key_opens_its_wraps_until_the_end(keys: tuple[KeyPair, ...]) -> None:
    custody = StaticCustody(keys, 7)
    wraps = [box.seal(key.public, SECRET) for key in keys]
    assert [await custody.open_wrap(wrap) for wrap in wraps] == [SECRET] * 3
    assert await custody.open_wrap(box.seal(KeyPair.generate().public, SECRET)) is None
    assert await custody.has_lost_keys() is False
    custody.wipe_keys()
    assert [await custody.open_wrap(wrap) for wrap in wraps] == [None] * 3


def test_development_evidence_names_release_and_key(keys: tuple[KeyPair, ...]) -> None:
    public = keys[0].public
    evidence = mock_evidence(public, 3)
    measurement, bound = mock_measurement(3), report_data(public)
    assert evidence == DevelopmentEvidence(
        "mock-coordinator-v1", bound, debug=False, release=3, measurement=measurement, tcb="mock", quote=evidence.quote
    )
    assert base64.b64decode(evidence.quote) == measurement + bound


EVERY, LEAD = 1000, 100


@pytest.fixture
def generations() -> Generations:
    return Generations(EVERY, LEAD)


def minted(generations: Generations, now: int) -> Generation:
    generation = generations.mint(now)
    generations.add([generation])
    return generation


def test_without_generations_one_is_due(generations: Generations) -> None:
    assert generations.is_due(0)
    assert generations.is_overdue(0)
    assert generations.newest_announced(0) is None


def test_first_generation_is_announced_at_once(generations: Generations) -> None:
    first = minted(generations, 50)
    assert generations.newest_announced(50) is first
    assert generations.newest_announced(49) is first  # on a clock that lags the minter's


def test_next_generation_is_minted_ahead(generations: Generations) -> None:
    first = minted(generations, 0)
    assert not generations.is_due(EVERY - LEAD - 1)
    assert generations.is_due(EVERY - LEAD)
    assert not generations.is_overdue(EVERY - 1)
    second = minted(generations, EVERY - LEAD)
    assert generations.newest_announced(EVERY - 1) is first
    assert generations.newest_announced(EVERY) is second
    assert not generations.is_due(EVERY)
    assert list(generations.keys_newest_first()) == [second.key, first.key]


def test_late_generation_is_announced_from_now(generations: Generations) -> None:
    minted(generations, 0)
    assert generations.is_overdue(5 * EVERY)
    late = minted(generations, 5 * EVERY)
    assert late.announced_from_ms == 5 * EVERY
    assert generations.newest_announced(5 * EVERY) is late


def test_generation_is_kept_while_its_jobs_can_be_claimed(generations: Generations) -> None:
    first = minted(generations, 0)
    # still announced: a generation never retires without a successor
    assert generations.find_expired(10 * RETENTION_MS) == []
    second = minted(generations, EVERY)
    assert generations.find_expired(EVERY + RETENTION_MS - 1) == []
    assert generations.find_expired(EVERY + RETENTION_MS) == [first]
    generations.erase([first])
    assert generations.oldest_first() == (second,)


def test_retention_covers_an_order_and_its_window() -> None:
    assert RETENTION_MS > 2 * 86_400_000


def test_instances_with_equal_generations_announce_the_same(generations: Generations) -> None:
    held = [Generation(KeyPair.generate(), 0) for _ in range(3)]
    other = Generations(EVERY, LEAD)
    generations.add(held)
    other.add(reversed(held))
    assert generations.oldest_first() == other.oldest_first()
    assert generations.newest_announced(0) is other.newest_announced(0)


def test_second_copy_of_a_held_key_is_wiped(generations: Generations) -> None:
    first = minted(generations, 0)
    secret = first.key.copy_secret()
    copy = Generation(KeyPair(secret), 0)
    assert generations.add([copy]) == []
    assert secret == bytes(32)
    assert len(generations) == 1


def test_key_of_an_operator_is_the_derived_one() -> None:
    assert KeyPair.from_operator_key(SECRET).public == escrow_key(SECRET).public


def test_wrap_opens_only_with_its_own_key() -> None:
    one, two, other = KeyPair.generate(), KeyPair.generate(), KeyPair.generate()
    assert open_with_any((one, two), box.seal(two.public, SECRET)) == SECRET
    assert open_with_any((one, two), box.seal(other.public, SECRET)) is None
    assert one.open(b"shorter than any sealed box") is None


def test_erased_key_opens_nothing_any_more() -> None:
    secret = bytearray(SECRET)
    key = KeyPair(secret)
    sealed = box.seal(key.public, b"seed")
    key.erase()
    assert secret == bytes(32)
    assert key.open(sealed) is None


def test_box_of_a_secret_message_opens_for_its_recipient() -> None:
    key, message = KeyPair.generate(), bytearray(b"keys")
    assert key.open(seal_secret(key.public, message)) == b"keys"
    wipe(message)
    assert message == bytes(4)


def test_secret_shows_in_no_repr_and_in_no_traceback() -> None:
    key = KeyPair(bytearray(SECRET))
    generation = Generation(key, 1)
    with pytest.raises(ValueError, match="secret key must have 32 bytes") as wrong:
        KeyPair(bytearray(SECRET + SECRET))
    shown = repr(key) + repr(generation) + repr([key]) + "".join(traceback.format_exception(wrong.value))
    assert SECRET.hex() not in shown
    assert repr(bytes(SECRET))[2:-1] not in shown
    assert key.public.raw.hex() in shown


@pytest.fixture
def logging_set_back() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.usefixtures("logging_set_back")
def test_failure_while_a_secret_is_at_hand_is_logged_without_it(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    set_up_logging("debug")

    def fail(secret: bytearray, key: KeyPair) -> None:
        raise RuntimeError(f"{key} does not work")

    try:
        fail(bytearray(SECRET), KeyPair(bytearray(SECRET)))
    except RuntimeError:
        structlog.get_logger("test").exception("request failed")
    logged = capsys.readouterr().err
    assert "does not work" in logged
    assert SECRET.hex() not in logged
    assert repr(SECRET)[2:-1] not in logged


DOMAINS = Domains.of(AddressBook.parse(ENVIRONMENT["ADDRESSES_JSON"].encode()))
OPERATORS = OperatorKeys.from_keys(DOMAINS, (Secret("0a" * 32), Secret("0b" * 32)))
SECOND_OPERATOR = OperatorKeys.from_keys(DOMAINS, (Secret("0b" * 32),))
STRANGER = OperatorKeys.from_keys(DOMAINS, (Secret("0c" * 32),))
NOW = 1_800_000_000

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
