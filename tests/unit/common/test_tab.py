import json
import os
import tracemalloc
from typing import Any, Final

import attrs
import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from common.address_book import AddressBook, TokenDomain
from common.box import SecretKey
from common.canonical_json import canonical
from common.domains import Domains, SigningDomain
from common.eip712 import Domain
from common.messages.tabs import TabKey
from common.refusal import Refused
from common.scalars import hex_of
from common.tab import channel, messages
from common.tab.channel import DATA, Channel, ChannelBinding, Frame, OwnerHandshake, accept_hello
from common.tab.messages import (
    SignedVoucher,
    TabAck,
    TabAnswer,
    TabDelta,
    TabFailure,
    TabRequest,
    Welcome,
    encode,
    read_owner_message,
    read_provider_message,
)
from common.tab.terms import Exchange, TabDelegation, TabTerms, TabTotals, announces_tabs, input_digest
from common.tab.transcript import TabOrder, Transcript, hash_exchange_chain, sum_exchange_units
from tests.vectors.vector_file import cases

DOMAINS: Final = Domains.of(
    AddressBook(
        chain_id=31337,
        deploy_block=0,
        job_registry=b"r" * 20,
        provider_registry=b"p" * 20,
        ask_registry=b"a" * 20,
        paytoken=b"t" * 20,
        payment_token_decimals=6,
        token_domain=TokenDomain("USD Coin", "2"),
    )
)


def sign(account: LocalAccount, digest: bytes) -> bytes:
    return bytes(account.unsafe_sign_hash(digest).signature)


VOUCHER = SignedVoucher(3, 200, 100, b"c" * 32, b"s" * 65)


def changed(message: messages.OwnerMessage | messages.ProviderMessage, **members: Any) -> bytes:
    return canonical(json.loads(encode(message)) | members)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"more":1,"t":"close"}',
        b'{"t": "close"}',
        b'{"t":"answer"}',
        changed(TabRequest(1, {}, VOUCHER), id=0),
        changed(TabRequest(1, {}, VOUCHER), id=2**32),
        changed(TabRequest(1, {}, VOUCHER), input=[]),
        changed(TabRequest(1, {}, VOUCHER), voucher={}),
        changed(TabAck((1,), VOUCHER), ids=[]),
        changed(TabAck((1,), VOUCHER), ids=list(range(1, 66))),
    ],
)
def test_other_owner_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_owner_message(raw)
    assert refused.value.code == "malformed_message"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"t":"close"}',
        changed(TabDelta(1, 0, ({},)), chunks=[]),
        changed(TabDelta(1, 0, ({},)), chunks=[{}] * 257),
        changed(TabAnswer(1, None, {}, 1, 1), units_out=-1),
        changed(TabFailure(1, "x"), code=""),
        encode(TabAnswer(1, 5, {}, 1, 1)).replace(b"5", b"1152921504606846976"),
        changed(Welcome(1, 0, 0, 0, ()), direct={"url": "x"}),
    ],
)
def test_other_provider_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_provider_message(raw)
    assert refused.value.code == "malformed_message"


PLACE = ChannelBinding(31337, b"r" * 20, b"j" * 32)


def connected(place: ChannelBinding = PLACE) -> tuple[Channel, Channel]:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    theirs, welcome = accept_hello(place, box, owner.public, Frame.parse(handshake.hello), b"welcome")
    ours, payload = handshake.finish(Frame.parse(welcome))
    assert payload == b"welcome"
    return ours, theirs


def received(channel_: Channel, frames: list[bytes]) -> bytes | None:
    return [channel_.open(Frame.parse(frame)) for frame in frames][-1]


@pytest.mark.parametrize("length", [0, 1, 65_518, 65_519, 1 << 20])
def test_messages_arrive_in_both_directions(length: int) -> None:
    ours, theirs = connected()
    message = os.urandom(length)
    assert received(theirs, ours.seal(message)) == message
    assert received(ours, theirs.seal(message)) == message


def test_message_above_the_limit_is_refused() -> None:
    with pytest.raises(Refused, match="1048576"):
        connected()[0].seal(bytes((1 << 20) + 1))


def test_parts_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = connected()
    frames = ours.seal(bytes(100_000))
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", 70_000)
    with pytest.raises(Refused):
        received(theirs, frames)


def test_empty_parts_use_no_memory() -> None:
    ours, theirs = connected()
    more = [Frame(DATA, ours.id, ours._outgoing.encrypt(b"\x01")) for _ in range(20_000)]
    tracemalloc.start()
    for frame in more:
        theirs.open(frame)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 20_000
    assert received(theirs, ours.seal(b"end")) == b"end"


def test_hello_of_another_owner_is_refused() -> None:
    box = SecretKey.generate()
    hello = Frame.parse(OwnerHandshake(PLACE, SecretKey.generate(), box.public).hello)
    with pytest.raises(Refused):
        accept_hello(PLACE, box, SecretKey.generate().public, hello, b"")


def test_hello_of_another_tab_is_refused() -> None:
    with pytest.raises(Refused):
        connected(ChannelBinding(31337, b"r" * 20, b"k" * 32))


def test_welcome_without_the_box_key_is_refused() -> None:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    impostor = SecretKey.generate()
    forged = OwnerHandshake(PLACE, owner, impostor.public)
    _, welcome = accept_hello(PLACE, impostor, owner.public, Frame.parse(forged.hello), b"")
    with pytest.raises(Refused):
        handshake.finish(Frame(channel.WELCOME, handshake.channel_id, Frame.parse(welcome).body))


def test_replayed_hello_gives_other_keys() -> None:
    owner, box = SecretKey.generate(), SecretKey.generate()
    handshake = OwnerHandshake(PLACE, owner, box.public)
    hello = Frame.parse(handshake.hello)
    accept_hello(PLACE, box, owner.public, hello, b"")
    replayed, _ = accept_hello(PLACE, box, owner.public, hello, b"")
    _, welcome = accept_hello(PLACE, box, owner.public, hello, b"")
    ours, _ = handshake.finish(Frame.parse(welcome))
    with pytest.raises(Refused):
        received(replayed, ours.seal(b"x"))


@pytest.mark.parametrize("raw", [b"", b"\x01" * 8, b"\x00" * 20, b"\x05" * 20, bytes(65_545)])
def test_other_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(Refused):
        Frame.parse(raw)


WALLET: Final = Account.create()
TAB_KEY: Final = Account.create()
JOB_ID: Final = b"j" * 32
EXCHANGES: Final = (
    Exchange(1, input_digest({"messages": []}), {"text": "one"}, {"completion_tokens": 3}, 10, 3),
    Exchange(2, input_digest({"messages": [1]}), {"text": "two"}, {}, 7, 4),
)
# Rates 1 and 2: ⌈17 · 1 / 2⌉ input units as output, and 7 output units.
ORDER: Final = TabOrder(JOB_ID, bytes.fromhex(WALLET.address[2:]), 3, 1, 2, 16)


def transcript(domains: Domains = DOMAINS) -> Transcript:
    key = bytes.fromhex(TAB_KEY.address[2:])
    delegation = sign(WALLET, domains.tabs.digest(TabKey(key, 3, 1000)))
    voucher = SignedVoucher(4, 30, 16, hash_exchange_chain(JOB_ID, EXCHANGES), b"")
    signature = sign(TAB_KEY, domains.tabs.digest(voucher.message(JOB_ID)))
    return Transcript(
        "idle", EXCHANGES, attrs.evolve(voucher, signature=signature), TabDelegation(key, 1000, delegation)
    )


def test_transcript_is_read_back_and_proves_the_charge() -> None:
    written = transcript()
    assert Transcript.read(written.output()) == written
    assert written.acknowledged_units == 16
    assert written.find_fault(ORDER, DOMAINS) is None
    assert (
        attrs.evolve(written, exchanges=(), voucher=None).find_fault(attrs.evolve(ORDER, completion_tok=0), DOMAINS)
        is None
    )


def test_input_is_charged_at_the_ratio_of_the_rates() -> None:
    assert sum_exchange_units(EXCHANGES) == TabTotals(17, 7)
    assert sum_exchange_units(EXCHANGES).charged_units(1, 2) == 16
    assert sum_exchange_units(EXCHANGES).charged_units(0, 2) == 7


def test_units_above_an_order_are_refused() -> None:
    with pytest.raises(Refused, match="units_out"):
        TabTotals(0, 2**32).charged_units(0, 1)


READERS = {"owner": messages.read_owner_message, "provider": messages.read_provider_message}


def raw(text: str) -> bytes:
    return bytes.fromhex(text[2:])


@pytest.mark.parametrize("case", cases("tab.json"), ids=lambda case: case["name"])
def test_vector(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check = globals()[f"check_{case['kind']}"]
    if "refused" not in case:
        check(case, monkeypatch)
        return
    with pytest.raises(Refused) as refusal:
        check(case, monkeypatch)
    assert refusal.value.code == case["refused"]


def check_payload(case: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    terms = TabTerms.read(case["input"])
    assert terms.model_input() == case["input"]
    assert hex_of(terms.channel_key.raw) == case["read"]


def check_evidence(case: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    assert announces_tabs(case["evidence"]) is case["announced"]


def check_message(case: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    read = READERS[case["sender"]](case["text"].encode())
    assert messages.encode(read) == case["text"].encode()
    assert json.loads(case["text"])["t"] == case["read"]


def check_transcript(case: dict[str, Any], _: pytest.MonkeyPatch) -> None:
    transcript = Transcript.read(case["output"])
    assert canonical(transcript.output()) == canonical(case["output"])
    domain = Domain("SVC Tabs", "1", int(case["chain_id"]), raw(case["job_registry"]))
    domains = attrs.evolve(DOMAINS, tabs=SigningDomain(domain))
    job_id = raw(case["job_id"])
    order = TabOrder(
        job_id,
        raw(case["owner"]),
        int(case["provider_id"]),
        int(case["rate_in"]),
        int(case["rate_out"]),
        case["completion_tok"],
    )
    assert hex_of(hash_exchange_chain(job_id, transcript.exchanges)) == case["chain"]
    fault = transcript.find_fault(order, domains)
    proves = "charge" if fault is None else "overcharge" if fault.startswith("overcharged") else "nothing"
    assert proves == case["proves"]
    if "voucher_digest" in case:
        assert transcript.voucher is not None
        assert hex_of(domains.tabs.digest(transcript.voucher.message(job_id))) == case["voucher_digest"]
        delegation = transcript.delegation
        key = TabKey(delegation.voucher_key, order.provider_id, delegation.expires_at)
        assert hex_of(domains.tabs.digest(key)) == case["delegation_digest"]


@attrs.frozen
class Sides:
    """Both sides of a channel with fixed keys."""

    owner: Channel
    provider: Channel
    hello: bytes
    welcome: bytes
    payload: bytes


def connected_with(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, payload: bytes, given: list[bytes] | None = None
) -> Sides:
    """Make the handshake. `given` is the hello and the welcome that arrive, if not those that were sent."""
    place = ChannelBinding(int(case["chain_id"]), raw(case["job_registry"]), raw(case["job_id"]))
    owner, box = SecretKey(raw(case["owner_secret"])), SecretKey(raw(case["box_secret"]))
    monkeypatch.setattr(channel.os, "urandom", lambda _: raw(case["channel_id"]))
    monkeypatch.setattr(SecretKey, "generate", lambda: SecretKey(raw(case["owner_ephemeral"])))
    handshake = OwnerHandshake(place, owner, box.public)
    monkeypatch.setattr(SecretKey, "generate", lambda: SecretKey(raw(case["box_ephemeral"])))
    hello = given[0] if given else handshake.hello
    provider, welcome = accept_hello(place, box, owner.public, Frame.parse(hello), payload)
    ours, read = handshake.finish(Frame.parse(given[1] if given else welcome))
    return Sides(ours, provider, handshake.hello, welcome, read)


def check_channel(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sides = connected_with(case, monkeypatch, raw(case["payload"]))
    frames = [sides.hello, sides.welcome]
    for sent in case["sent"]:
        frames += (sides.owner if sent["from"] == "owner" else sides.provider).seal(raw(sent["message"]))
    assert list(map(hex_of, frames)) == case["frames"]


def check_received(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hello, welcome, *frames = map(raw, case["given"])
    sides = connected_with(case, monkeypatch, b"", [hello, welcome])
    opened = [sides.payload, *(sides.provider.open(Frame.parse(frame)) for frame in frames)]
    assert [hex_of(message or b"") for message in opened] == case["opened"]
