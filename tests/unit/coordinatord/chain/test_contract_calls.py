"""How reads of contracts interpret a node's errors."""

import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.views import View, read_many

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("code", "named"), [(-32005, "rate_limited"), (-32603, "config_read")])
async def test_single_error_for_a_batch_is_retryable(code: int, named: str) -> None:
    async def refuse(_request: bytes) -> tuple[int, bytes]:
        return 200, b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"no"}}' % code

    with pytest.raises(Retryable) as trouble:
        await read_many(Rpc(refuse), [View(bytes(20), b"", "config_read")] * 2, "config_read")
    assert (trouble.value.kind, trouble.value.code) == ("relay_unavailable", named)
