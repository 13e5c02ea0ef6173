"""The scripted node answers in the envelopes of a real one."""

import json
from typing import Any, Final

import httpx
import pytest

from devnet.anvil import Anvil
from tests.support.fakes.chain import FakeChain

pytestmark = pytest.mark.anyio

KNOWN: Final = {"jsonrpc": "2.0", "id": 7, "method": "eth_chainId", "params": []}
UNKNOWN: Final = {"jsonrpc": "2.0", "id": 3, "method": "eth_nothing", "params": []}


def envelope(answers: Any) -> Any:
    """Return the answer without its values: the members of each object, its version and its id."""
    if isinstance(answers, list):
        return sorted(map(envelope, answers))
    return answers["id"], answers["jsonrpc"], sorted(answers), answers.get("error", {}).get("code", 0)


@pytest.mark.parametrize("request_", [KNOWN, UNKNOWN, [KNOWN, UNKNOWN], [KNOWN]])
async def test_scripted_node_answers_like_anvil(request_: Any, anvil: Anvil) -> None:
    body = json.dumps(request_).encode()
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"content-type": "application/json"}
        real = (await http.post(anvil.rpc_url, content=body, headers=headers)).json()
    status, scripted = await FakeChain().post(body)
    assert (status, envelope(json.loads(scripted))) == (200, envelope(real))
