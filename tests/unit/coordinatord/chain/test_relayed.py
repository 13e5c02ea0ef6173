import pytest

from common.abi import dynamic_bytes, encode, selector, topic
from common.artifacts import load_artifact
from common.artifacts import selector as artifact_selector
from common.refusal import Refused
from coordinatord.chain.contracts.relayed_calls import ReceiptLog, decode_calls, find_refused_calls, relay_calldata

REGISTRY, STRANGER = b"\x0a" * 20, b"\x0b" * 20
REFUSED = "0x" + topic("CallRefused(uint256,bytes)").hex()
REASON = selector("StaleOp()")


def log(index: int, reason: bytes = REASON, *, address: bytes = REGISTRY, first_topic: str = REFUSED) -> ReceiptLog:
    topics = [first_topic, "0x" + index.to_bytes(32, "big").hex()]
    return ReceiptLog(address="0x" + address.hex(), topics=topics, data="0x" + encode(dynamic_bytes(reason)).hex())


def test_calls_are_wrapped_for_the_registries_own_function() -> None:
    calldata = relay_calldata([b"\x01\x02", b""])
    assert calldata[:4] == artifact_selector(load_artifact("JobRegistry"), "relay")
    assert (len(calldata) - 4) % 32 == 0


def test_refused_calls_are_named_by_position() -> None:
    assert find_refused_calls([log(2), log(5, b"")], REGISTRY) == {2: REASON, 5: b""}


def test_logs_of_other_events_and_other_contracts_refuse_nothing() -> None:
    other_event = log(1, first_topic="0x" + topic("JobCancelled(bytes32)").hex())
    assert find_refused_calls([log(1, address=STRANGER), other_event], REGISTRY) == {}


def test_a_garbled_reason_still_counts_as_refused() -> None:
    garbled = ReceiptLog(address="0x" + REGISTRY.hex(), topics=log(3).topics, data="0x1234")
    assert find_refused_calls([garbled], REGISTRY) == {3: b""}


def test_calls_are_read_back() -> None:
    calls = [b"", b"one", bytes(100)]
    assert decode_calls(relay_calldata(calls)) == calls
    assert decode_calls(relay_calldata([])) == []
    assert decode_calls(b"post") is None
    with pytest.raises(Refused):
        decode_calls(relay_calldata(calls)[:-32])
