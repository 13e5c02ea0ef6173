"""Logs of admins from nodes that answer only narrow block ranges."""

import httpx
import pytest

from common import artifacts
from common.scalars import hex_of
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.market.admin_events import read_admin_events
from coordinatord.market.contracts import Contract
from tests.unit.coordinatord.market.nodes import error, node_that, result

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

    events = list(read_admin_events(node_that(answer), {"JobRegistry": JOBS}, 5, 104, 100))
    assert [block for first, last in asked for block in range(first, last + 1)] == list(range(5, 105))
    assert [(event.name, dict(event.values)) for event in events[:1]] == [("SlaSet", {"slaSecs": 60, "allowed": True})]
    assert len(events) == len(asked)


def test_node_that_refuses_a_single_block_is_believed() -> None:
    node = node_that(lambda *_: error(-32005, "query exceeds max block range"))
    with pytest.raises(RpcError):
        list(read_admin_events(node, {"JobRegistry": JOBS}, 1, 9, 4))
