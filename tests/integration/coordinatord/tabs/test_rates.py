"""Rates of frames, and the number of streams of a caller."""

import pytest

from common.scalars import base64_of
from coordinatord.api.tabs import routes
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.streams import Streams
from tests.integration.coordinatord.scene.tabs import POST, path_of, post

pytestmark = pytest.mark.anyio


@pytest.fixture
def stage_settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(routes, "WALLET_FRAMES_PER_S", 4)
    monkeypatch.setattr(routes, "TAB_FRAMES_PER_S", 2)
    return {"event_listeners_per_caller": 0}


@shows("POST /v1/tabs/messages", 429, "busy")
@shows("GET /v1/tabs/{job_id}/messages", 429, "busy")
async def test_tabs_wallets_and_callers_have_limits(client: Party, provider: Party, job: str, streams: Streams) -> None:
    assert await post(provider, job, [b"frame"] * 5) == [{"job_id": job, "code": "mailbox_full"}]
    body = {"messages": [{"job_id": job, "body": base64_of(b"frame")}] * 9}
    busy = await provider.http.post(POST, json=body, headers=provider.authorization)
    assert (busy.status_code, busy.headers["x-svc-retryable"]) == (429, "true")
    assert await post(client, job, [b"frame"] * 4) == []
    async with streams.open(path_of(job), client.authorization) as refused:
        assert refused.response.status_code == 429
