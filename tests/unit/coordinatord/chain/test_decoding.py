from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

import attrs
import msgspec
import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from common import abi
from common.abi import selector, topic
from common.artifacts import load_artifact
from common.artifacts import selector as artifact_selector
from common.refusal import Refused
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.contracts.relayed_calls import ReceiptLog, decode_calls, find_refused_calls, relay_calldata
from coordinatord.chain.rpc.chain_data import ChainLog
from tests.support.fakes.chain import ADDRESSES, BOOK, DECODER
from tests.support.fakes.event_logs import REGISTRIES, declared_events, encoded, log_of

# Events that do not change the market: ownership, the signing domain, the pause.
UNREAD = {"OwnershipTransferStarted", "OwnershipTransferred", "EIP712DomainChanged", "Paused", "Unpaused"}
EVENTS = [(registry, name) for registry in REGISTRIES for name in declared_events(registry) if name not in UNREAD]


def log(registry: str, topics: list[str], data: str) -> ChainLog:
    return ChainLog(ADDRESSES[registry], tuple(topics), data, "0x5", "0x" + "77" * 32, "0x0")


def values_of(entry: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*(value_of(parameter) for parameter in entry["inputs"])).map(list)


def value_of(parameter: dict[str, Any]) -> st.SearchStrategy[Any]:
    match parameter["type"]:
        case "tuple[]":
            return st.lists(st.tuples(*(value_of(component) for component in parameter["components"])), max_size=5)
        case "bool":
            return st.booleans()
        case "string":
            return st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=70)
        case "bytes":
            return st.binary(max_size=70)
        case "address":
            return st.binary(min_size=20, max_size=20)
        case "bytes32":
            return st.binary(min_size=32, max_size=32)
        case number:
            return st.integers(0, 2 ** int(number.removeprefix("uint")) - 1)


@pytest.mark.parametrize(("registry", "name"), EVENTS)
def test_every_declared_event_round_trips(registry: str, name: str) -> None:
    entry = declared_events(registry)[name]

    @given(values_of(entry))
    def comes_back(values: list[Any]) -> None:
        event = DECODER.decode(log(registry, **encoded(entry, values)))
        assert type(event) is getattr(contract_events, name)
        assert event is not None
        fields = msgspec.structs.astuple(event)
        plain = [[msgspec.structs.astuple(q) for q in f] if isinstance(f, tuple) else f for f in fields]
        assert plain == values

    comes_back()


@pytest.mark.parametrize(
    ("registry", "name"), [(r, name) for r in REGISTRIES for name in declared_events(r) if name in UNREAD]
)
def test_events_outside_the_market_are_passed_over(registry: str, name: str) -> None:
    entry = declared_events(registry)[name]
    values = [b"\x01" * 20 for _ in entry["inputs"]]
    assert DECODER.decode(log(registry, **encoded(entry, values))) is None


def settled(cid: bytes = b"bafk") -> dict[str, Any]:
    entry = declared_events("JobRegistry")["JobSettled"]
    made = encoded(entry, [b"\x01" * 32, 7, 5, 6, 7, 8, "bafk"])
    made["data"] = "0x" + encode(["uint32", "uint256", "uint256", "uint256", "bytes"], [5, 6, 7, 8, cid]).hex()
    return made


def test_invalid_utf8_is_read_with_replacements() -> None:
    event = DECODER.decode(log("JobRegistry", **settled(b"a\xff\0b")))
    assert isinstance(event, contract_events.JobSettled)
    assert event.result_cid == "a\ufffd\ufffdb"


def with_word(data: str, word: int, value: str) -> str:
    at = 2 + 64 * word
    return data[:at] + value.rjust(64, "0") + data[at + 64 :]


FINE = settled()


def one_by_one(logs: list[ChainLog]) -> list[object]:
    return [DECODER.decode(each) for each in logs]


def outcome(read: Callable[[list[ChainLog]], list[Any]], logs: list[ChainLog]) -> list[Any] | str:
    try:
        return read(logs)
    except Refused as refused:
        return str(refused)


@pytest.mark.parametrize(("registry", "name"), EVENTS)
def test_events_read_together_are_those_that_are_read_one_by_one(registry: str, name: str) -> None:
    entry = declared_events(registry)[name]

    @given(st.lists(values_of(entry), min_size=1, max_size=3))
    def are_the_same(several: list[list[Any]]) -> None:
        logs = [log(registry, **encoded(entry, values)) for values in several] * 8
        assert DECODER.decode_all(logs) == one_by_one(logs)

    are_the_same()


def test_similar_events_are_decoded_together() -> None:
    """Posts as a market writes them take the fast path, not the fallback that decodes word by word."""
    posts = [
        contract_events.JobPosted(
            bytes([n]) * 32, b"\2" * 20, n, b"\3" * 32, 60, n, 2**64 - 1, 1, 2, 0, 9, 250, n, "a" * 59, b"\4" * 65
        )
        for n in range(1, 40)
    ]
    logs = [
        ChainLog(**log_of(each, ADDRESSES), block_number="0x5", block_hash="0x" + "77" * 32, log_index="0x0")
        for each in posts
    ]
    logs = [msgspec.structs.replace(each, topics=tuple(each.topics)) for each in logs]
    read = Mock(side_effect=DECODER.decode)
    with patch.object(type(DECODER), "decode", read):
        assert DECODER.decode_all(logs) == posts
    assert read.call_count == 1


@given(st.integers(1, 15), st.integers(0, 15 * 32 - 1), st.integers(1, 255))
def test_logs_with_a_differing_byte_decode_individually(which: int, at: int, by: int) -> None:
    logs = [log("JobRegistry", **settled(b"bafk" * 9)) for _ in range(16)]
    data = bytearray.fromhex(logs[which].data[2:])
    data[at % len(data)] ^= by
    logs[which] = msgspec.structs.replace(logs[which], data="0x" + data.hex())
    assert outcome(DECODER.decode_all, logs) == outcome(one_by_one, logs)


def test_values_that_lie_in_each_other_are_not_read_together() -> None:
    """The signature's length is part of the CID. It differs even when all bytes outside of the values are equal."""

    def overlapping(length: int) -> ChainLog:
        entry = declared_events("JobRegistry")["JobPosted"]
        made = encoded(entry, [b"\1" * 32, b"\2" * 20, 3, b"\4" * 32, *([0] * 9), "", b""])
        tails = ["40", f"{length:x}", ("61" * length).ljust(64, "0")]
        offsets = ["180", "1a0"]
        head = made["data"][: 2 + 64 * 10]
        return log("JobRegistry", made["topics"], head + "".join(word.rjust(64, "0") for word in (*offsets, *tails)))

    logs = [*(overlapping(5) for _ in range(9)), overlapping(6)]
    events = DECODER.decode_all(logs)
    assert events == one_by_one(logs)
    assert [len(each.pay_sig) for each in events if isinstance(each, contract_events.JobPosted)] == [5] * 9 + [6]


def test_the_first_malformed_log_of_many_is_named() -> None:
    logs = [log("JobRegistry", **FINE) for _ in range(20)]
    broken = msgspec.structs.replace(logs[7], data=with_word(FINE["data"], 0, "100000000"), log_index="0x7")
    with pytest.raises(Refused, match="log 0x7 of block 0x5"):
        DECODER.decode_all([*logs[:7], broken, *logs[8:]])


@pytest.mark.parametrize(
    ("topics", "data", "why"),
    [
        (FINE["topics"][:2], FINE["data"], "topics"),
        ([*FINE["topics"], FINE["topics"][1]], FINE["data"], "topics"),
        (FINE["topics"], FINE["data"][:100], "fewer"),
        (FINE["topics"], FINE["data"] + "0", "not hex"),
        (FINE["topics"], with_word(FINE["data"], 0, "100000000"), "wider"),
        ([*FINE["topics"][:2], "0x" + "f" * 64], FINE["data"], "wider"),
        (FINE["topics"], with_word(FINE["data"], 4, "fffff0"), "outside of the log"),
        (FINE["topics"], with_word(FINE["data"], 4, "a1"), "outside of the log"),
        (FINE["topics"], with_word(FINE["data"], 5, "fff"), "outside of the log"),
        (FINE["topics"], with_word(FINE["data"], 5, "3"), "padding"),
    ],
)
def test_a_log_that_no_compiler_writes_is_refused(topics: list[str], data: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        DECODER.decode(log("JobRegistry", topics, data))


def test_a_log_of_a_stranger_is_refused() -> None:
    with pytest.raises(Refused, match="was not requested"):
        DECODER.decode(ChainLog("0x" + "99" * 20, FINE["topics"], FINE["data"], "0x5", "0x" + "77" * 32, "0x0"))


def test_an_address_in_mixed_case_is_recognised() -> None:
    decoder = LogDecoder(attrs.evolve(BOOK, job_registry=b"\xab" * 20))
    made = ChainLog("0x" + "aB" * 20, FINE["topics"], FINE["data"], "0x5", "0x" + "77" * 32, "0x0")
    assert isinstance(decoder.decode(made), contract_events.JobSettled)


REGISTRY, STRANGER = b"\x0a" * 20, b"\x0b" * 20
REFUSED = "0x" + topic("CallRefused(uint256,bytes)").hex()
REASON = selector("StaleOp()")


def refusal(index: int, reason: bytes = REASON, *, address: bytes = REGISTRY, first_topic: str = REFUSED) -> ReceiptLog:
    topics = [first_topic, "0x" + index.to_bytes(32, "big").hex()]
    return ReceiptLog(
        address="0x" + address.hex(), topics=topics, data="0x" + abi.encode(abi.dynamic_bytes(reason)).hex()
    )


def test_calls_are_wrapped_for_the_registries_own_function() -> None:
    calldata = relay_calldata([b"\x01\x02", b""])
    assert calldata[:4] == artifact_selector(load_artifact("JobRegistry"), "relay")
    assert (len(calldata) - 4) % 32 == 0


def test_refused_calls_are_named_by_position() -> None:
    assert find_refused_calls([refusal(2), refusal(5, b"")], REGISTRY) == {2: REASON, 5: b""}


def test_logs_of_other_events_and_other_contracts_refuse_nothing() -> None:
    other_event = refusal(1, first_topic="0x" + topic("JobCancelled(bytes32)").hex())
    assert find_refused_calls([refusal(1, address=STRANGER), other_event], REGISTRY) == {}


def test_a_garbled_reason_still_counts_as_refused() -> None:
    garbled = ReceiptLog(address="0x" + REGISTRY.hex(), topics=refusal(3).topics, data="0x1234")
    assert find_refused_calls([garbled], REGISTRY) == {3: b""}


def test_calls_are_read_back() -> None:
    calls = [b"", b"one", bytes(100)]
    assert decode_calls(relay_calldata(calls)) == calls
    assert decode_calls(relay_calldata([])) == []
    assert decode_calls(b"post") is None
    with pytest.raises(Refused):
        decode_calls(relay_calldata(calls)[:-32])
