"""Events as the contracts' own ABI encodes them come back whole; what no contract writes is refused."""

from typing import Any

import attrs
import msgspec
import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from common.refusal import Refused
from coordinatord.chain import events as ev
from coordinatord.chain.logs import Decoder
from coordinatord.chain.rpc import ChainLog
from tests.fakes.chain import ADDRESSES, BOOK, DECODER
from tests.fakes.event_logs import REGISTRIES, declared_events, encoded

# What says nothing about the market: ownership, the signing domain, the pause.
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
def test_every_declared_event_decodes_to_what_was_encoded(registry: str, name: str) -> None:
    entry = declared_events(registry)[name]

    @given(values_of(entry))
    def comes_back(values: list[Any]) -> None:
        event = DECODER.decode(log(registry, **encoded(entry, values)))
        assert type(event) is getattr(ev, name)
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


def test_a_string_that_is_not_text_is_read_with_replacements_and_not_refused() -> None:
    event = DECODER.decode(log("JobRegistry", **settled(b"a\xff\0b")))
    assert isinstance(event, ev.JobSettled)
    assert event.result_cid == "a\ufffd\ufffdb"


def with_word(data: str, word: int, value: str) -> str:
    at = 2 + 64 * word
    return data[:at] + value.rjust(64, "0") + data[at + 64 :]


FINE = settled()


@pytest.mark.parametrize(
    ("topics", "data", "why"),
    [
        (FINE["topics"][:2], FINE["data"], "topics"),
        ([*FINE["topics"], FINE["topics"][1]], FINE["data"], "topics"),
        (FINE["topics"], FINE["data"][:100], "fewer"),
        (FINE["topics"], FINE["data"] + "0", "not hex"),
        (FINE["topics"], with_word(FINE["data"], 0, "100000000"), "wider"),
        ([*FINE["topics"][:2], "0x" + "f" * 64], FINE["data"], "wider"),
        (FINE["topics"], with_word(FINE["data"], 4, "fffff0"), "not within"),
        (FINE["topics"], with_word(FINE["data"], 4, "a1"), "not within"),
        (FINE["topics"], with_word(FINE["data"], 5, "fff"), "not within"),
        (FINE["topics"], with_word(FINE["data"], 5, "3"), "padding"),
    ],
)
def test_a_log_that_no_compiler_writes_is_refused(topics: list[str], data: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        DECODER.decode(log("JobRegistry", topics, data))


def test_a_log_of_a_stranger_is_refused() -> None:
    with pytest.raises(Refused, match="not asked for"):
        DECODER.decode(ChainLog("0x" + "99" * 20, FINE["topics"], FINE["data"], "0x5", "0x" + "77" * 32, "0x0"))


def test_an_address_in_mixed_case_is_recognised() -> None:
    decoder = Decoder(attrs.evolve(BOOK, job_registry=b"\xab" * 20))
    made = ChainLog("0x" + "aB" * 20, FINE["topics"], FINE["data"], "0x5", "0x" + "77" * 32, "0x0")
    assert isinstance(decoder.decode(made), ev.JobSettled)
