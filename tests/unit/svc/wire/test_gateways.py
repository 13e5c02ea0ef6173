import hashlib
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest

from common.cid import Cid, ImportProfile, cid_of
from svc.errors import ResultUnreadable
from svc.wire import block_reads
from svc.wire.checked_reads import CheckedReader
from svc.wire.gateways import Gateways
from tests.support.fakes.streamed import StreamedTransport
from tests.unit.svc.fake_coordinator import Answer, Asked, Dropped, FakeCoordinator, Told

A, B = "http://a", "http://b"


async def read(coordinator: FakeCoordinator, *urls: str, cid: str = "bafyx") -> bytes:
    client = coordinator.client(gateways=urls)
    return bytes(await client._account.checked_reader.read(cid, bytearray, bytearray.extend, whole))


def whole(content: bytearray) -> None:
    if content != b"there":
        raise ResultUnreadable("it does not open", code="undecryptable")


def held(**answers: list[Told]) -> FakeCoordinator:
    return FakeCoordinator({f"GET http://{name}/ipfs/bafyx": told for name, told in answers.items()})


@pytest.mark.parametrize("failure", [Dropped(), Answer(404), Answer(500), Answer(504)])
async def test_missing_object_is_requested_eight_times(failure: Told) -> None:
    late = held(a=[failure] * 7 + [Answer(200, b"there")])
    assert await read(late, A) == b"there"
    times = [asked.at - late.asked[0].at for asked in late.asked]
    assert times == pytest.approx([1.5 * n for n in range(8)])
    never = held(a=[failure])
    with pytest.raises(ResultUnreadable) as unread:
        await read(never, A)
    assert (unread.value.code, unread.value.retryable, len(never.asked)) == ("gateway_unavailable", True, 8)


@pytest.mark.parametrize("status", [400, 401, 403, 410, 429])
async def test_other_statuses_fail_at_once(status: int) -> None:
    coordinator = held(a=[Answer(status)])
    with pytest.raises(ResultUnreadable) as unread:
        await read(coordinator, A)
    assert (unread.value.code, len(coordinator.asked)) == ("gateway_status", 1)


async def test_redirects_without_end_are_a_failure_as_any_other() -> None:
    coordinator = held(a=[Answer(302, headers={"location": "http://a/ipfs/bafyx"})])
    with pytest.raises(ResultUnreadable) as unread:
        await read(coordinator, A)
    assert unread.value.code == "gateway_status"


@pytest.mark.parametrize("location", [f"{A}/other", "https://elsewhere/bafyx", "/other"])
async def test_redirect_to_the_same_host_or_to_https_is_followed(location: str) -> None:
    there = {f"GET {A}/other": [Answer(200, b"there")], "GET https://elsewhere/bafyx": [Answer(200, b"there")]}
    moved = [Answer(302, headers={"location": location})]
    assert await read(FakeCoordinator({f"GET {A}/ipfs/bafyx": moved, **there}), A) == b"there"


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest", "//b/ipfs/bafyx"])
async def test_redirect_to_plain_http_is_the_gateways_failure(location: str) -> None:
    coordinator = held(a=[Answer(302, headers={"location": location})])
    with pytest.raises(ResultUnreadable, match="must use https") as unread:
        await read(coordinator, A)
    assert (unread.value.code, len(coordinator.asked)) == ("gateway_status", 1)


async def test_next_gateway_is_asked_where_one_fails() -> None:
    coordinator = held(a=[Answer(403)], b=[Answer(200, b"there")])
    assert await read(coordinator, A, B) == b"there"
    assert {asked.at for asked in coordinator.asked} == {coordinator.asked[0].at}  # without a pause


async def test_only_a_gateway_that_may_get_it_is_asked_again() -> None:
    coordinator = held(a=[Answer(403)], b=[Answer(404), Answer(200, b"there")])
    assert await read(coordinator, A, B) == b"there"
    assert [asked.route for asked in coordinator.asked] == [f"GET {host}/ipfs/bafyx" for host in (A, B, B)]


async def test_wrong_bytes_are_the_gateways_failure() -> None:
    cid = str(cid_of(b"there"))
    forged = FakeCoordinator({f"GET {A}/ipfs/{cid}": [Answer(200, b"forged")]})
    with pytest.raises(ResultUnreadable, match="does not match its id") as unread:
        await read(forged, A, cid=cid)
    assert unread.value.code == "gateway_status"
    forged.tell(f"GET {B}/ipfs/{cid}", Answer(200, b"there"))
    assert await read(forged, A, B, cid=cid) == b"there"


@pytest.mark.parametrize("profile", [None, ImportProfile(1 << 18, 174)], ids=["the protocol's", "another store's"])
async def test_multi_block_file_is_checked_against_its_id(profile: ImportProfile | None) -> None:
    content = bytes(range(256)) * 5000  # 1.28 million bytes: two blocks or five
    cid = str(cid_of(content, profile))
    forged = bytearray(content)
    forged[-1] ^= 1
    coordinator = FakeCoordinator(
        {f"GET {A}/ipfs/{cid}": [Answer(200, bytes(forged))], f"GET {B}/ipfs/{cid}": [Answer(200, content)]}
    )
    for urls in ((A, B), (B,)):
        gateways = coordinator.client(gateways=urls)._account.checked_reader
        assert bytes(await gateways.read(cid, bytearray, bytearray.extend, lambda _: None)) == content
    with pytest.raises(ResultUnreadable, match="does not match its id"):
        await coordinator.client(gateways=A)._account.checked_reader.read(
            cid, bytearray, bytearray.extend, lambda _: None
        )


async def test_unopenable_content_blames_its_maker_if_it_is_the_ids() -> None:
    def refuse(_: bytearray, piece: bytes) -> None:
        raise ResultUnreadable("it does not open", code="undecryptable")

    cid = str(cid_of(b"there"))
    for content, code in ((b"there", "undecryptable"), (b"forged", "gateway_status")):
        coordinator = FakeCoordinator({f"GET {A}/ipfs/{cid}": [Answer(200, content)]})
        with pytest.raises(ResultUnreadable) as unread:
            await coordinator.client(gateways=A)._account.checked_reader.read(cid, bytearray, refuse, whole)
        assert unread.value.code == code


def dag_pb(*links: Cid, content: bytes = b"") -> tuple[Cid, bytes]:
    """Encode a file's node with few, short fields."""
    named = b"".join(b"\x12\x26\x0a\x24" + each.encode() for each in links)
    data = b"\x08\x02" + (b"\x12" + bytes((len(content),)) + content if content else b"")
    block = named + b"\x0a" + bytes((len(data),)) + data
    return Cid("dag-pb", hashlib.sha256(block).digest()), block


# An unusual split: a leaf of four bytes, and a node that has both content and a child.
LEAF = cid_of(b"ther")
INNER, INNER_BLOCK = dag_pb(content=b"e")
ROOT, ROOT_BLOCK = dag_pb(LEAF, INNER)
BLOCKS = {str(LEAF): b"ther", str(INNER): INNER_BLOCK, str(ROOT): ROOT_BLOCK}


def serving(held: dict[str, bytes], content: bytes = b"there") -> FakeCoordinator:
    """Script a gateway for files at B, and one at A that serves blocks as well."""

    def told(cid: str) -> Callable[[Asked], Answer]:
        return lambda asked: Answer(200, held[cid] if asked.query.get("format") == "raw" else content)

    routes: dict[str, list[Told]] = {f"GET {A}/ipfs/{cid}": [told(cid)] for cid in held}
    return FakeCoordinator({**routes, f"GET {B}/ipfs/{ROOT}": [Answer(200, content)]})


async def test_content_that_was_cut_in_any_way_is_proved_by_its_blocks() -> None:
    assert await read(serving(BLOCKS), A, cid=str(ROOT)) == b"there"
    # The gateway forges the file but not its blocks.
    assert await read(serving(BLOCKS, b"forged"), A, cid=str(ROOT)) == b"there"
    assert await read(serving(BLOCKS), B, A, cid=str(ROOT)) == b"there"


async def test_gateway_without_blocks_is_told_what_must_be_done() -> None:
    with pytest.raises(ResultUnreadable, match="to a gateway that serves blocks") as unread:
        await read(serving(BLOCKS), B, cid=str(ROOT))
    assert unread.value.code == "gateway_status"


@pytest.mark.parametrize("forged", [LEAF, INNER, ROOT], ids=["leaf", "inner", "root"])
async def test_each_block_is_checked_against_its_id(forged: Cid) -> None:
    with pytest.raises(ResultUnreadable, match=f"the bytes do not match block {forged}"):
        await read(serving(BLOCKS | {str(forged): b"forged"}), A, cid=str(ROOT))


async def test_proved_content_that_does_not_open_is_its_makers_fault() -> None:
    leaf, block = dag_pb(content=b"other")
    coordinator = FakeCoordinator({f"GET {A}/ipfs/{leaf}": [lambda _: Answer(200, block)]})
    with pytest.raises(ResultUnreadable) as unread:
        await read(coordinator, A, B, cid=str(leaf))
    assert (unread.value.code, len(coordinator.asked)) == ("undecryptable", 2)


async def test_tree_that_names_blocks_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reads, "_MAX_BLOCKS", 2)
    with pytest.raises(ResultUnreadable, match="at most 1073741824 bytes and 2 blocks"):
        await read(serving(BLOCKS), A, cid=str(ROOT))


async def test_unverifiable_unopenable_content_is_fetched_elsewhere() -> None:
    page = Answer(200, b"<html>Just a moment")
    coordinator = held(a=[page], b=[Answer(404), Answer(200, b"ther"), Answer(200, b"there")])
    with pytest.raises(ResultUnreadable) as unread:
        await read(coordinator, A, B)
    assert (unread.value.code, len(coordinator.asked)) == ("undecryptable", 3)
    assert await read(coordinator, A, B) == b"there"


async def test_trickling_gateway_is_given_up_for_the_next() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await anyio.sleep(60)
            yield b"t"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=trickle() if request.url.host == "a" else b"there")

    async with httpx.AsyncClient(transport=StreamedTransport(answer)) as http:
        assert (
            bytes(await CheckedReader(Gateways(http, (A, B))).read("bafyx", bytearray, bytearray.extend, whole))
            == b"there"
        )


async def test_reads_carry_no_credentials() -> None:
    coordinator = held(a=[Answer(200, b"there")])
    await read(coordinator, A)
    assert not {"authorization", "cookie"} & set(coordinator.asked[0].headers)


async def test_no_gateway_means_no_reads() -> None:
    with pytest.raises(ResultUnreadable) as unread:
        await read(held())
    assert unread.value.code == "reads_disabled"


@pytest.mark.parametrize("cid", ["", "../etc/passwd", "bafy?x=1", "bafy x"])
async def test_invalid_cid_never_becomes_a_path(cid: str) -> None:
    coordinator = held()
    with pytest.raises(ResultUnreadable) as unread:
        await read(coordinator, A, cid=cid)
    assert (unread.value.code, coordinator.asked) == ("bad_cid", [])
