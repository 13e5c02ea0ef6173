import httpx
import pytest
import trio
from trio.testing import MockClock

from common.api import limits
from common.secp256k1 import Wallet
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.requests import Requests
from svcd.coordinator.sessions import ProviderSessions
from tests.fakes.market import Market
from tests.fakes.streamed import StreamedTransport

pytestmark = pytest.mark.trio


async def test_list_whose_pages_never_end_is_left(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGEST_OFFSET", 1_000)
    model = {"id": "m", "owned_by": "us", "svc": {"model_id": "1", "enabled": True}}
    same = httpx.Response(200, json={"data": [model] * 100})
    async with httpx.AsyncClient(transport=StreamedTransport(lambda _: same)) as http:
        requests = Requests(http, "http://c")
        signer = OpSigner(Wallet(b"\x11" * 32), Market(trio.current_time).domains)
        with pytest.raises(Unavailable, match="without an end"):
            await Coordinator(requests, ProviderSessions(requests, signer, Clock())).models()
