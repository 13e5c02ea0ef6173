import os
from pathlib import Path

import httpx
import pytest
import trio

from svc.wire.gateways import Gateways
from svcd.base.end_reasons import WorkFailed
from svcd.payload.gateway import PayloadGateways
from svcd.payload.spool import Spool
from tests.support.fakes.streamed import StreamedTransport

CONTENT = b"0123456789" * 1_000_000


class Net:
    """Gateways by host. Each answers its list of statuses before it answers 200. `wrong` gateways serve different
    content."""

    def __init__(self, *, wrong: str = "", **statuses: list[int]) -> None:
        self.statuses = statuses
        self.wrong = wrong
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        self.asked.append(host)
        status = self.statuses[host].pop(0) if self.statuses[host] else 200
        if not status:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(status, content=b"<html>Just a moment" if host == self.wrong else CONTENT)


async def right(spool: Spool) -> None:
    if spool.length != len(CONTENT):
        raise WorkFailed("commitment_mismatch")


async def fetched(net: Net, directory: Path, *, attempts: int = 8, limit: int = 2**30, until: float = 1000) -> bytes:
    async with httpx.AsyncClient(transport=StreamedTransport(net)) as http:
        spool = Spool(directory, limit)
        urls = [f"http://{host}" for host in net.statuses]
        try:
            gateways = PayloadGateways(Gateways(http, urls, attempts))
            await gateways.fetch("cid", spool, trio.current_time() + until, lambda: right(spool))
            content = b"".join(spool.pieces())
            assert len(content) == spool.length
            return content
        finally:
            spool.clear()


async def test_gateways_are_tried_in_turn_until_one_has_it(tmp_path: Path) -> None:
    net = Net(a=[404, 503], b=[0])
    assert await fetched(net, tmp_path) == CONTENT
    assert net.asked == ["a", "b", "a", "b"]
    assert os.listdir(tmp_path) == []  # the spool's file is unlinked


async def test_network_outage_is_waited_out(tmp_path: Path) -> None:
    assert await fetched(Net(a=[0] * 50), tmp_path, attempts=2, until=100) == CONTENT
    with pytest.raises(WorkFailed, match="ConnectError"):
        await fetched(Net(a=[0] * 50), tmp_path, attempts=2, until=50)
    assert trio.current_time() == pytest.approx(50 * 1.5 + 50, abs=1.5)


async def test_gateway_that_refuses_is_left_out(tmp_path: Path) -> None:
    net = Net(a=[403], b=[404])
    assert await fetched(net, tmp_path) == CONTENT
    assert net.asked == ["a", "b", "b"]


async def test_gateway_with_wrong_content_is_skipped(tmp_path: Path) -> None:
    net = Net(wrong="a", a=[], b=[404])
    assert await fetched(net, tmp_path) == CONTENT
    assert net.asked == ["a", "b", "b"]
    with pytest.raises(WorkFailed) as failed:
        await fetched(Net(wrong="a", a=[], b=[404] * 9), tmp_path)
    assert failed.value.reason == "commitment_mismatch"


@pytest.mark.parametrize(
    ("net", "changed"),
    [(Net(a=[404] * 9), {}), (Net(a=[410]), {}), (Net(a=[404] * 9), {"until": 2.0})],
    ids=["nowhere", "refused by all", "no time left"],
)
async def test_unavailable_payload_is_task_unresolved(net: Net, changed: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(WorkFailed) as failed:
        await fetched(net, tmp_path, **changed)  # type: ignore[arg-type]
    assert failed.value.reason == "task_unresolved"
    assert len(net.asked) <= 8


async def test_more_than_is_allowed_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed) as failed:
        await fetched(Net(a=[]), tmp_path, limit=100_000)
    assert failed.value.reason == "bad_container"


async def test_content_without_disk_room_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcd.payload.spool.tempfile.TemporaryFile", lambda dir: open("/dev/full", "r+b"))  # noqa: SIM115 - the spool closes it
    with pytest.raises(WorkFailed, match="No space left") as failed:
        await fetched(Net(a=[]), tmp_path)
    assert failed.value.reason == "task_unresolved"


@pytest.mark.parametrize("location", ["https://cid.ipfs.b/", "http://a/other"])
async def test_redirect_to_the_same_host_or_by_https_is_followed(location: str, tmp_path: Path) -> None:
    assert await redirected(location, tmp_path) == ["http://a/ipfs/cid", location]


@pytest.mark.parametrize("location", ["http://127.0.0.1:9000/", "http://cid.ipfs.a/", "http://169.254.169.254/latest"])
async def test_redirect_to_plain_http_skips_the_gateway(location: str, tmp_path: Path) -> None:
    before = trio.current_time()
    with pytest.raises(WorkFailed, match="another host must use https") as failed:
        await redirected(location, tmp_path)
    assert (failed.value.reason, trio.current_time() - before) == ("task_unresolved", 0)


async def redirected(location: str, tmp_path: Path) -> list[str]:
    """Fetch from a gateway that redirects to `location`, and return the addresses that were requested."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.path == "/ipfs/cid":
            return httpx.Response(301, headers={"location": location})
        return httpx.Response(200, content=CONTENT)

    async with httpx.AsyncClient(transport=StreamedTransport(answer)) as http:
        spool = Spool(tmp_path, 2**30)
        await PayloadGateways(Gateways(http, ["http://a"])).fetch(
            "cid", spool, trio.current_time() + 10, lambda: right(spool)
        )
        assert spool.length == len(CONTENT)
        spool.clear()
    return asked
