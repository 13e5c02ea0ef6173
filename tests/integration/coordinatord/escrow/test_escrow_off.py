import pytest

from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


@shows("GET /key", 403, "escrow_unavailable")
@shows("POST /release", 403, "escrow_unavailable")
@shows("POST /release", 413, "body_too_large")
@shows("POST /handover", 403, "escrow_unavailable")
@shows("POST /handover", 413, "body_too_large")
async def test_escrow_routes_answer_that_there_is_none(stage: Stage) -> None:
    for path, size in (("/release", 2048), ("/handover", 4096)):
        answer = await stage.http.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "escrow_unavailable")
        assert answer.headers["x-svc-retryable"] == "false"
        assert (await stage.http.post(path, content=b" " * (size + 1))).status_code == 413
    assert (await stage.http.get("/key")).json()["error"]["code"] == "escrow_unavailable"
