import pytest

from svcd.backends.load import open_load
from svcd.base import metrics
from tests.support.fakes.backend_settings import read_probe
from tests.support.fakes.model_server import Reply, running_model_server

pytestmark = pytest.mark.trio

TEXT = Reply(200, (b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="a"} 1.0\n',))


@pytest.mark.parametrize(
    ("table", "reply"),
    [({"kind": "prometheus"}, TEXT), ({"kind": "json", "path": "load"}, Reply.of({"load": 0.25}))],
    ids=["prometheus", "json"],
)
async def test_a_servers_reading_is_the_load_and_is_shown(table: dict[str, object], reply: Reply) -> None:
    async with running_model_server(lambda _: reply) as server:
        settings = read_probe(table | {"url": server.url + "/metrics"})
        async with open_load(settings, model="read", slots=4, in_flight=lambda: 4) as load:
            assert await load.read() == 0.25
    assert server.paths() == ["GET /metrics"]
    assert metrics.backend_load.labels("read")._value.get() == 0.25


@pytest.mark.parametrize(
    "reply",
    [None, Reply.of({}, 500), Reply(200, (b"<html>",)), Reply(200, (b"x" * 65536,) * 130)],
    ids=["silence", "500", "no reading", "endless"],
)
async def test_load_falls_back_to_own_slots_and_is_counted(reply: Reply | None) -> None:
    failures = metrics.load_probe_failures.labels("unread")
    before = failures._value.get()
    async with running_model_server(lambda _: reply) as server:
        settings = read_probe({"kind": "prometheus", "url": server.url, "timeout_s": 0.1 if reply is None else 5})
        async with open_load(settings, model="unread", slots=4, in_flight=lambda: 3) as load:
            assert await load.read() == 0.75
    assert failures._value.get() - before == 1
