"""Nodes of the market commands: retries, fees, contracts and logs in narrow ranges."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from requests.adapters import BaseAdapter
from web3 import Web3

from common import artifacts
from common.daemon.process import Fatal
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.market.admin_events import read_admin_events
from coordinatord.market.contracts import Contract, checksum_address, explain_revert, is_code_of, read_address
from coordinatord.market.fees import GWEI, FeeOptions, Fees, current_fees
from coordinatord.market.node import RetryingProvider, broadcast, build_web3, connect, eth_call, read_receipt

URL = "https://user:word@node.example/v1/key-of-mine"
Answer = Callable[[str, list[Any]], httpx.Response]


class _FakeNodeAdapter(BaseAdapter):
    """Answer each JSON-RPC request with `answer(method, params)`.

    A raised httpx error becomes a `requests.ConnectionError`.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        body = json.loads(request.body or b"")
        try:
            reply = self.answer(body["method"], body["params"])
        except httpx.HTTPError as error:
            raise requests.ConnectionError(f"{request.url}: {error}") from error
        response = requests.Response()
        response.status_code = reply.status_code
        response._content = reply.content
        response.url = str(request.url)
        return response

    def close(self) -> None:
        pass


def connect_to_fake_node(answer: Answer) -> Web3:
    session = requests.Session()
    session.mount("https://", _FakeNodeAdapter(answer))
    return build_web3(session, URL)


def result(value: object) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: int, message: str, data: str | None = None, status: int = 200) -> httpx.Response:
    told: dict[str, object] = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return httpx.Response(status, json={"jsonrpc": "2.0", "id": 1, "error": told})


def answering(**results: object) -> Web3:
    """Answer by method name. Exceptions are raised."""
    return connect_to_fake_node(lambda method, _: result(results[method]))


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryingProvider._call_with_retries.retry, "sleep", lambda _: None)


TO = "0x" + "11" * 20


def unreachable() -> httpx.Response:
    raise httpx.ConnectError("connection to https://user:word@node.example/v1/key-of-mine refused")


@pytest.mark.parametrize(
    "stumble",
    [
        unreachable,
        lambda: httpx.Response(502, text="<html>"),
        lambda: httpx.Response(503, json={"message": "busy"}),
        lambda: httpx.Response(429, json={"message": "slow down"}),
        lambda: error(-32005, "rate limit exceeded", status=429),
    ],
)
def test_node_that_stumbles_is_asked_again(stumble: Callable[[], httpx.Response]) -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return stumble() if len(asked) < 3 else result("0x2a")

    assert connect_to_fake_node(answer).eth.block_number == 42
    assert asked == ["eth_blockNumber"] * 3


def test_silent_node_is_named_without_its_api_key() -> None:
    with pytest.raises(Retryable) as silence:
        connect_to_fake_node(lambda *_: unreachable()).eth.get_block("latest")
    assert "node.example" in str(silence.value)
    for secret in ("word", "key-of-mine"):
        assert secret not in str(silence.value)


@pytest.mark.parametrize("url", ["", "node.example", "ws://node.example", "http://", "file:///etc/passwd"])
def test_non_http_address_is_refused(url: str) -> None:
    with pytest.raises(Fatal, match="must be an http"), connect(url):
        pass


def test_error_with_an_http_error_status_is_an_answer() -> None:
    with pytest.raises(RpcError, match="query returned more than 10000 results"):
        eth_call(
            connect_to_fake_node(lambda *_: error(-32005, "query returned more than 10000 results", status=400)),
            TO,
            b"",
        )


def test_answer_that_is_no_json_rpc_is_not_requested_again() -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return httpx.Response(401, text="who are you?")

    with pytest.raises(Retryable, match=r"node\.example does not answer \(HTTP 401\)"):
        eth_call(connect_to_fake_node(answer), TO, b"")
    assert len(asked) == 1


def test_refusal_is_not_asked_again() -> None:
    asked: list[str] = []

    def answer(method: str, _: object) -> httpx.Response:
        asked.append(method)
        return error(3, "execution reverted", "0x1234")

    with pytest.raises(RpcError, match="execution reverted"):
        eth_call(connect_to_fake_node(answer), TO, b"")
    assert len(asked) == 1


def test_bytes_that_the_node_has_already_count_as_sent() -> None:
    broadcast(connect_to_fake_node(lambda *_: error(-32000, "already known")), b"\x02")
    with pytest.raises(RpcError):
        broadcast(connect_to_fake_node(lambda *_: error(-32000, "nonce too low")), b"\x02")


def test_pending_transaction_has_no_receipt() -> None:
    assert read_receipt(connect_to_fake_node(lambda *_: result({"blockNumber": None})), "0x") is None
    assert read_receipt(connect_to_fake_node(lambda *_: result(None)), "0x") is None


def chain(base: int | None, tip: int | None) -> Web3:
    def answer(method: str, _: object) -> httpx.Response:
        if method == "eth_maxPriorityFeePerGas":
            return error(-32601, "method not found") if tip is None else result(hex(tip))
        return result({} if base is None else {"baseFeePerGas": hex(base)})

    return connect_to_fake_node(answer)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (FeeOptions(), Fees(base_fee=100, tip=7, max_fee=207)),
        (FeeOptions(tip=1), Fees(base_fee=100, tip=1, max_fee=201)),
        (FeeOptions(max_fee=150), Fees(base_fee=100, tip=7, max_fee=150)),
        (FeeOptions(max_fee=107), Fees(base_fee=100, tip=7, max_fee=107)),
    ],
)
def test_fee_offer_is_twice_the_base_fee_plus_tip(options: FeeOptions, expected: Fees) -> None:
    assert current_fees(chain(100, 7), options) == expected


def test_ceiling_below_the_chains_fee_is_refused() -> None:
    with pytest.raises(Fatal, match="raise --max-fee"):
        current_fees(chain(100, 7), FeeOptions(max_fee=106))


def test_node_that_proposes_no_tip_gets_one_gwei() -> None:
    assert current_fees(chain(100, None), FeeOptions()).tip == GWEI


def test_chain_without_base_fee_is_refused() -> None:
    with pytest.raises(Fatal, match="EIP-1559"):
        current_fees(chain(None, 1), FeeOptions())


def test_replacement_raises_both_fees_by_a_tenth_at_least() -> None:
    raised = Fees(base_fee=1, tip=1, max_fee=3).replacement_for(1000, 100)
    assert raised.max_fee >= 1100
    assert raised.tip >= 110
    assert Fees(base_fee=1, tip=5000, max_fee=9000).replacement_for(1000, 100) == Fees(
        base_fee=1, tip=5000, max_fee=9000
    )


ADDRESS = "0x5FbDB2315678afecb367f032d93F642f64180aa3"


@pytest.mark.parametrize("text", [ADDRESS, ADDRESS.lower(), "0x" + ADDRESS[2:].upper()])
def test_address_is_read_in_one_case_or_with_its_checksum(text: str) -> None:
    assert read_address(text, "owner") == ADDRESS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ADDRESS.replace("F", "f", 1), "owner must have the checksum of EIP-55"),
        (ADDRESS[:-1], "owner must be 0x-prefixed hex of 20 bytes"),
        (ADDRESS[2:], "owner must be 0x-prefixed hex of 20 bytes"),
        ("0x" + "00" * 20, "owner must not be the zero address"),
        (7, "owner must be 0x-prefixed hex of 20 bytes"),
    ],
)
def test_other_address_is_refused_by_its_name(text: object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read_address(text, "owner")


@pytest.mark.parametrize("name", ["AskRegistry", "JobRegistry", "ProviderRegistry"])
def test_code_is_compared_without_immutable_values(name: str) -> None:
    template = artifacts.deployed_code(name)
    holes = template.count(b"\x7f" + bytes(32))
    assert holes >= 1
    assert is_code_of(name, template.replace(b"\x7f" + bytes(32), b"\x7f" + bytes(range(32))))
    assert not is_code_of(name, template[:-1])
    assert not is_code_of(name, template + b"\x00")
    for position in (0, len(template) // 2, len(template) - 1):
        other = bytearray(template)
        other[position] ^= 1
        assert not is_code_of(name, bytes(other))


def test_revert_is_explained_by_name_and_values() -> None:
    owner = "0x" + "ab" * 20
    unauthorised = keccak(text="OwnableUnauthorizedAccount(address)")[:4] + encode(["address"], [owner])
    assert explain_revert(unauthorised) == f"OwnableUnauthorizedAccount({checksum_address(owner)})"
    assert explain_revert(keccak(text="FeeTooHigh()")[:4]) == "FeeTooHigh()"
    assert explain_revert(keccak(text="Error(string)")[:4] + encode(["string"], ["blacklisted"])) == "blacklisted"
    assert explain_revert(keccak(text="Panic(uint256)")[:4] + encode(["uint256"], [17])) == "Panic(17)"
    assert "0xdeadbeef" in explain_revert(b"\xde\xad\xbe\xef")
    assert explain_revert(b"") == "the call reverted without a reason"


def test_revert_that_is_cut_off_is_shown_as_it_is() -> None:
    cut = keccak(text="OwnableUnauthorizedAccount(address)")[:4] + b"\x01"
    assert explain_revert(cut) == f"OwnableUnauthorizedAccount: 0x{cut.hex()}"


def test_answer_of_another_contract_is_refused() -> None:
    with pytest.raises(Refused, match="is not a JobRegistry: the answer to fees is invalid"):
        Contract("JobRegistry", ADDRESS).read(answering(eth_call="0x01"), "fees")


JOBS = Contract("JobRegistry", "0x" + "11" * 20)


def test_too_wide_range_is_halved_and_read_once() -> None:
    asked: list[tuple[int, int]] = []

    def answer(_: str, params: list[dict[str, str]]) -> httpx.Response:
        first, last = int(params[0]["fromBlock"], 16), int(params[0]["toBlock"], 16)
        if last - first >= 30:
            return error(-32005, "query exceeds max block range 30")
        asked.append((first, last))
        word = "0x" + (60).to_bytes(32, "big").hex()
        log = {
            "address": JOBS.address,
            "topics": [hex_of(artifacts.event_topic(artifacts.load_artifact("JobRegistry"), "SlaSet")), word],
            "data": "0x" + "00" * 31 + "01",
            "blockNumber": hex(last),
            "blockHash": "0x" + "33" * 32,
            "logIndex": "0x0",
            "transactionHash": "0x" + "22" * 32,
            "transactionIndex": "0x0",
        }
        return result([log])

    events = list(read_admin_events(connect_to_fake_node(answer), {"JobRegistry": JOBS}, 5, 104, 100))
    assert [block for first, last in asked for block in range(first, last + 1)] == list(range(5, 105))
    assert [(event.name, dict(event.values)) for event in events[:1]] == [("SlaSet", {"slaSecs": 60, "allowed": True})]
    assert len(events) == len(asked)


def test_node_that_refuses_a_single_block_is_believed() -> None:
    node = connect_to_fake_node(lambda *_: error(-32005, "query exceeds max block range"))
    with pytest.raises(RpcError):
        list(read_admin_events(node, {"JobRegistry": JOBS}, 1, 9, 4))
