"""The vectors of tabs, read by `common.tab`."""

import json
from typing import Any

import attrs
import pytest

from common.box import SecretKey
from common.canonical_json import canonical
from common.domains import SigningDomain
from common.eip712 import Domain
from common.messages.tabs import TabKey
from common.refusal import Refused
from common.scalars import hex_of
from common.tab import channel, messages
from common.tab.channel import Channel, ChannelBinding, Frame, OwnerHandshake, accept_hello
from common.tab.terms import TabTerms, announces_tabs
from common.tab.transcript import TabOrder, Transcript, hash_exchange_chain
from tests.unit.common.tab_scene import DOMAINS
from tests.vectors.vector_file import cases

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


def connected(
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
    sides = connected(case, monkeypatch, raw(case["payload"]))
    frames = [sides.hello, sides.welcome]
    for sent in case["sent"]:
        frames += (sides.owner if sent["from"] == "owner" else sides.provider).seal(raw(sent["message"]))
    assert list(map(hex_of, frames)) == case["frames"]


def check_received(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hello, welcome, *frames = map(raw, case["given"])
    sides = connected(case, monkeypatch, b"", [hello, welcome])
    opened = [sides.payload, *(sides.provider.open(Frame.parse(frame)) for frame in frames)]
    assert [hex_of(message or b"") for message in opened] == case["opened"]
