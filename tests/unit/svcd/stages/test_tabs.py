"""Tabs over the whole daemon, on a virtual clock, with an owner and a mailbox in memory."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import attrs
import pytest
import trio

from common.secp256k1 import Wallet
from common.tab.channel import WELCOME
from common.tab.messages import TabAck, TabAnswer, TabClose, TabDelta, TabRequest
from svc.core.tabs import OpenRequest, first_choice_text
from svc.wire.transport import ConnectionFailed
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput
from svcd.payload.sealable import to_sealable
from svcd.tabs import ledger
from svcd.tabs.outgoing import OutgoingQueue
from tests.support.fakes.market import START, Market
from tests.support.fakes.tabs import MemoryMailbox, TabOwner
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, Running, model_for


@pytest.fixture
def mailbox() -> MemoryMailbox:
    return MemoryMailbox()


@pytest.fixture
def owner(market: Market, mailbox: MemoryMailbox) -> TabOwner:
    return TabOwner(market, mailbox)


async def echo(work: ModelWork) -> WorkOutput:
    return WorkOutput(work.input["input"], 10, {"units": 10})


def settled(running: Running, owner: TabOwner) -> Any:
    return owner.transcript(running.opened(owner.job).output)


async def test_tab_runs_requests_and_settles_once(market: Market, start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        welcome = await owner.connect()
        assert (welcome.max_parallel, welcome.voucher_number, welcome.answered_ids) == (4, 0, ())
        for number in range(1, 6):
            assert await owner.ask(number, f"word {number}") == f"word {number}"
        began = trio.current_time()
        assert await running.end_of(owner.job) == ("settled", None)
        assert 60 <= trio.current_time() - began < 80
        transcript = settled(running, owner)
        assert [exchange.output for exchange in transcript.exchanges] == [f"word {n}" for n in range(1, 6)]
        assert (transcript.closing_reason, transcript.acknowledged_units) == ("idle", 5 * 10 + 5 * 9 // 2 + 1)
    assert market.calls.count("settle") == 1


def text(number: int, units_out: int = 50) -> dict[str, object]:
    return {"input": f"word {number}", "max_tokens": units_out}


async def test_restart_repeats_no_answered_request_and_keeps_acks(
    market: Market, start: Start, owner: TabOwner
) -> None:
    async def hang_on_the_third(work: ModelWork) -> WorkOutput:
        if work.item_number == 3:
            await trio.sleep_forever()
        return await echo(work)

    owner.post()
    async with start(backend=Backend(hang_on_the_third), mailbox=owner.mailbox) as running:
        await owner.connect()
        await owner.ask(1)
        for number in (2, 3):
            owner.request(number, text(number))
        await owner.until_answered(2)
        stored = running.journal_path.with_name("journal.sqlite3-wal").read_bytes() + running.journal_path.read_bytes()
        assert b"word 2" not in stored
    second = Backend(echo)
    async with start(backend=second, mailbox=owner.mailbox) as running:
        welcome = await owner.connect()
        assert (welcome.voucher_number, welcome.acknowledged, welcome.answered_ids) == (2, owner.charged, (2,))
        owner.acknowledge(2)
        owner.request(3, text(3))
        await owner.until_answered(3)
        owner.acknowledge(3)
        assert await running.end_of(owner.job) == ("settled", None)
        assert [work.item_number for work in second.ran] == [3]
        assert [exchange.id for exchange in settled(running, owner).exchanges] == [1, 2, 3]


async def test_tab_whose_delegation_expired_in_a_restart_is_settled(start: Start, owner: TabOwner) -> None:
    owner.delegated_until = START + 60
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox):
        assert (await owner.connect()).seconds_left < 60
        await owner.ask(1)
        await trio.sleep(1)
    await trio.sleep(60)
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        assert await running.end_of(owner.job) == ("settled", None)
        assert (settled(running, owner).closing_reason, settled(running, owner).acknowledged_units) == ("deadline", 15)


async def test_restart_in_the_margin_settles_acknowledged_answers(start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox):
        await owner.connect()
        await owner.ask(1)
        await trio.sleep(1)
    await trio.sleep(575)  # the window is 600 seconds and the margin 30
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        assert await running.end_of(owner.job) == ("settled", None)
        assert (settled(running, owner).closing_reason, settled(running, owner).acknowledged_units) == ("deadline", 15)


async def test_unanswered_request_is_joined_on_a_new_channel(start: Start, owner: TabOwner) -> None:
    go_on = trio.Event()

    async def stream(work: ModelWork, on_delta: Any) -> WorkOutput:
        for word in ("one", "two", "three"):
            on_delta({"word": word})
            if word == "two":
                await go_on.wait()
        return await echo(work)

    owner.post()
    async with start(backend=Backend(stream=stream), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.request(1, text(1))
        while len(owner.chunks.get(1, [])) < 2:
            await owner.receive()
        await owner.connect()
        owner.chunks.clear()
        owner.request(1, text(1))
        go_on.set()
        await owner.until_answered(1)
        assert owner.chunks == {1: [{"word": "one"}, {"word": "two"}, {"word": "three"}]}
        assert len(running.backend.ran) == 1


async def test_chunks_are_grouped_and_tabs_share_posts(market: Market, start: Start, mailbox: MemoryMailbox) -> None:
    async def stream(work: ModelWork, on_delta: Any) -> WorkOutput:
        for number in range(100):
            on_delta({"n": number})
            await trio.sleep(0.01)
        return await echo(work)

    owners = [TabOwner(market, mailbox) for _ in range(2)]
    for owner in owners:
        owner.post()
    async with start(backend=Backend(stream=stream), mailbox=mailbox):
        for owner in owners:
            await owner.connect()
            owner.request(1, text(1))
        began, before = trio.current_time(), len(mailbox.posts)
        await owners[0].receive()
        assert trio.current_time() - began < 0.01  # the first chunk waits for nothing
        for owner in owners:
            await owner.until_answered(1)
            assert owner.chunks[1] == [{"n": number} for number in range(100)]
        assert len(mailbox.posts) - before < 30


async def test_requests_beyond_the_allowance_do_not_run(start: Start, owner: TabOwner) -> None:
    async def slow(work: ModelWork) -> WorkOutput:
        await trio.sleep(5)
        return await echo(work)

    owner.post()
    async with start(backend=Backend(slow), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.request(1, text(1), owner.voucher(allowance=54))  # 50 + ⌈9 / 2⌉ = 55
        owner.request(2, text(2, 100_000))
        owner.request(3, text(3), owner.voucher(allowance=60))
        owner.request(4, text(4), owner.voucher(allowance=115, number=1))
        owner.request(5, text(5), owner.voucher(allowance=115, acknowledged=1))
        owner.request(6, text(6), owner.voucher(allowance=owner.cap + 1))
        owner.voucher_key, own = Wallet(b"\x77" * 32), owner.voucher_key
        owner.request(7, text(7), owner.voucher(allowance=115))
        owner.voucher_key = own
        owner.request(8, text(8), owner.voucher(allowance=108))  # 2 * 50 + ⌈2 * 9 / 2⌉ = 109
        await owner.until_answered(*range(1, 9))
        assert owner.failures == {
            1: "over_allowance",
            2: "over_cap",
            **dict.fromkeys((4, 5, 6, 7), "bad_voucher"),
            8: "over_allowance",
        }
        assert [work.item_number for work in running.backend.ran] == [3]


async def test_refused_acks_charge_nothing(start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        for number in (1, 2):
            owner.request(number, text(number))
        await owner.until_answered(1, 2)
        for ids, changed in (
            ((1, 1), {}),
            ((3,), {}),
            ((1,), {"acknowledged": 14}),
            ((1,), {"acknowledged": 15, "chain": b"\x01" * 32}),
            (
                (1, 2),
                {"acknowledged": 29, "chain": owner.exchange(2).chain_hash(owner.exchange(1).chain_hash(owner.chain))},
            ),
        ):
            owner.send(TabAck(ids, owner.voucher(**changed)))
        assert (await owner.connect()).acknowledged == 29  # 2 * 10 + ⌈2 * 9 / 2⌉: only the last ack is right
        owner.send(TabClose())
        assert await running.end_of(owner.job) == ("settled", None)


async def test_requests_wait_while_answers_are_unacknowledged(start: Start, owner: TabOwner) -> None:
    owner.post()
    models = (model_for("demo/text", {"text"}, slots=2),)
    async with start(backend=Backend(echo), mailbox=owner.mailbox, models=models) as running:
        await owner.connect()
        for number in range(1, 6):
            owner.request(number, text(number))
        await owner.until_answered(1, 2)
        await trio.sleep(30)
        assert [work.item_number for work in running.backend.ran] == [
            1,
            2,
            3,
        ]  # the third began with one without an ack
        owner.acknowledge(1)
        await trio.sleep(30)
        assert [work.item_number for work in running.backend.ran] == [1, 2, 3]
        owner.acknowledge(2)
        await owner.until_answered(4)
        began = trio.current_time()
        assert await running.end_of(owner.job) == ("settled", None)  # waiting for acks counts as idle
        assert trio.current_time() - began < 80
        assert settled(running, owner).acknowledged_units == 29


async def test_requests_that_are_no_text_fail_without_running(start: Start, owner: TabOwner) -> None:
    owner.post()
    models = (model_for("demo/text", {"text", "image"}),)
    async with start(backend=Backend(echo), mailbox=owner.mailbox, models=models) as running:
        await owner.connect()
        for number, model_input in enumerate(
            (
                {"width": 8, "height": 8, "prompt": "x"},
                {"svc_bundle": 1, "items": []},
                {"svc_tab": 1},
                {"messages": [], "max_tokens": "many"},
            )
        ):
            owner.send(TabRequest(number + 1, model_input, owner.voucher(allowance=10_000)))
        await owner.until_answered(1, 2, 3, 4)
        assert set(owner.failures) == {1, 2, 3, 4}
        assert running.backend.ran == []


async def test_failed_request_is_not_charged_and_not_repeated(start: Start, owner: TabOwner) -> None:
    async def act(work: ModelWork) -> WorkOutput:
        if work.item_number == 1:
            raise WorkFailed("backend_error", "no such parameter")
        return await echo(work)

    owner.post()
    async with start(backend=Backend(act), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.request(1, text(1))
        await owner.until_answered(1)
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.failures.clear()
        owner.request(1, text(1))
        await owner.until_answered(1)
        assert (owner.failures, running.backend.ran) == ({1: "backend_error"}, [])


@pytest.mark.parametrize("way", ["close", "drain", "deadline"])
async def test_tab_settles_in_time_with_what_was_acknowledged(
    way: str, market: Market, start: Start, owner: TabOwner
) -> None:
    async def act(work: ModelWork) -> WorkOutput:
        await trio.sleep(10**6 if work.item_number == 2 else 0)
        return await echo(work)

    owner.post()
    async with start(backend=Backend(act), mailbox=owner.mailbox) as running:
        welcome = await owner.connect()
        assert 560 <= welcome.seconds_left <= 568
        await owner.ask(1)
        owner.request(2, text(2))
        if way == "close":
            owner.send(TabClose())
        if way == "drain":
            running.drain.begin()
        while owner.closing is None:
            await owner.receive()
        assert await running.end_of(owner.job) == ("settled", None)
        assert settled(running, owner).closing_reason == way == owner.closing
        assert [exchange.id for exchange in settled(running, owner).exchanges] == [1]


async def test_last_acks_count_until_two_seconds_after_closing(start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.request(1, text(1))
        await owner.until_answered(1)
        owner.send(TabClose())
        while owner.closing is None:
            await owner.receive()
        await trio.sleep(1.5)
        owner.acknowledge(1)
        assert await running.end_of(owner.job) == ("settled", None)
        assert settled(running, owner).acknowledged_units == 15


class FaultyMailbox(MemoryMailbox):
    """Mailbox whose stream raises an unexpected error at the frame FAULT."""

    FAULT = b"fault"

    async def _frames(self, job_id: bytes) -> AsyncGenerator[bytes, None]:
        async with aclosing(super()._frames(job_id)) as frames:
            async for frame in frames:
                if frame == self.FAULT:
                    raise RuntimeError("planted")
                yield frame


async def test_unexpected_error_settles_acknowledged_answers(market: Market, start: Start) -> None:
    owner = TabOwner(market, FaultyMailbox())
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        await owner.ask(1)
        owner.request(2, text(2))
        await owner.until_answered(2)
        owner.mailbox.put(owner.job_id, FaultyMailbox.FAULT)
        assert await running.end_of(owner.job) == ("settled", None)
        transcript = settled(running, owner)
        assert [exchange.id for exchange in transcript.exchanges] == [1]
        assert (transcript.closing_reason, transcript.acknowledged_units) == ("internal_error", 15)
    assert market.calls.count("settle") == 1


async def test_repeated_request_queues_one_answer() -> None:
    outgoing, output = OutgoingQueue(), {"text": "x"}
    for _ in range(5):
        outgoing.put(TabAnswer(1, output, {}, 1, 1))
    assert len(outgoing.take()) == 1


@pytest.mark.parametrize(
    ("pieces", "is_cut"),
    [(["a"] * 90_000, True), (["one ", "\ud83d", "\ude00", " two"], True), (["one ", "two"], False)],
    ids=["longer than a stream", "character in two halves", "whole"],
)
async def test_owner_accepts_every_stream_of_a_provider(pieces: list[str], *, is_cut: bool) -> None:
    outgoing, text = OutgoingQueue(), str(to_sealable("".join(pieces)))
    opened = OpenRequest(1, {}, bytes(32), 1, 1)
    for piece in pieces:
        outgoing.add_chunk(1, {"choices": [{"index": 0, "delta": {"content": piece}}]})
    outgoing.end(1, TabAnswer(1, {"choices": [{"index": 0, "message": {"content": text}}]}, {}, 1, 1))
    while opened.exchange is None:
        for message in outgoing.take():
            if isinstance(message, TabDelta):
                opened.extend(message)
            elif isinstance(message, TabAnswer):
                assert (len("".join(map(first_choice_text, opened.chunks))) < len(text)) is is_cut
                opened.finish(message)
    assert "".join(map(first_choice_text, opened.chunks)) == text


async def test_cap_and_large_answers_close_a_tab(market: Market, start: Start, mailbox: MemoryMailbox) -> None:
    async def large(work: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 900_000, 1)

    small, big = TabOwner(market, mailbox, cap=55), TabOwner(market, mailbox, voucher_key=Wallet(b"\x67" * 32))
    small.post()
    async with start(backend=Backend(_full), mailbox=mailbox) as running:
        await small.connect()
        await small.ask(1, "word 1")
        assert await running.end_of(small.job) == ("settled", None)
        assert (settled(running, small).closing_reason, small.charged) == ("cap", 55)
    big.post()
    async with start(backend=Backend(large), mailbox=mailbox) as running:
        await big.connect()
        for number in range(1, 11):
            await big.ask(number)
        assert await running.end_of(big.job) == ("settled", None)
        assert settled(running, big).closing_reason == "full"


@pytest.mark.parametrize("output", ["x" * (1 << 20), "," * (1 << 17)], ids=["bytes", "values"])
async def test_streams_of_too_large_answers_close_a_tab(output: str, start: Start, owner: TabOwner) -> None:
    async def large(work: ModelWork, on_delta: Any) -> WorkOutput:
        on_delta({"text": "useful"})
        return WorkOutput(output, 1)

    owner.post()
    async with start(backend=Backend(stream=large), mailbox=owner.mailbox) as running:
        await owner.connect()
        for number in range(1, 9):
            owner.request(number, text(number))
            await owner.until_answered(number)
        assert owner.failures == dict.fromkeys(range(1, 9), "answer_too_large")
        assert await running.end_of(owner.job) == ("settled", None)
        assert settled(running, owner).closing_reason == "failures"


async def test_commas_of_all_answers_fill_a_tab(monkeypatch: pytest.MonkeyPatch, start: Start, owner: TabOwner) -> None:
    async def commas(work: ModelWork) -> WorkOutput:
        return WorkOutput("," * 1000, 1)

    monkeypatch.setattr(ledger, "MAX_TAB_VALUES", 2000)
    owner.post()
    async with start(backend=Backend(commas), mailbox=owner.mailbox) as running:
        await owner.connect()
        await owner.ask(1)
        await owner.ask(2)
        assert await running.end_of(owner.job) == ("settled", None)
        assert settled(running, owner).closing_reason == "full"


async def test_open_inputs_are_bounded_by_their_memory(
    monkeypatch: pytest.MonkeyPatch, start: Start, owner: TabOwner
) -> None:
    async def slow(work: ModelWork) -> WorkOutput:
        await trio.sleep(5)
        return await echo(work)

    monkeypatch.setattr(ledger, "MAX_OPEN_BYTES", 1000)
    owner.post()
    async with start(backend=Backend(slow), mailbox=owner.mailbox) as running:
        await owner.connect()
        owner.request(1, text(1) | {"stop": [[]] * 10})
        owner.request(2, text(2))
        await owner.until_answered(1, 2)
        assert owner.failures == {2: "too_many_requests"}
        assert [work.item_number for work in running.backend.ran] == [1]


async def _full(work: ModelWork) -> WorkOutput:
    return WorkOutput("", work.units_out)


async def test_one_wallet_leaves_slots_and_turns_for_single_jobs(
    market: Market, start: Start, mailbox: MemoryMailbox
) -> None:
    async def slow(work: ModelWork) -> WorkOutput:
        await trio.sleep(20)
        return WorkOutput("done", 10)

    owners = [TabOwner(market, mailbox) for _ in range(6)]
    async with start(backend=Backend(slow), mailbox=mailbox) as running:  # four slots
        for owner in owners:
            owner.post()
        await running.until(lambda: len(market.results) == 4)
        refused = [owner for owner in owners if owner.job in market.results]
        assert {settled(running, owner).closing_reason for owner in refused} == {"tabs_full"}
        tabs = [owner for owner in owners if owner not in refused]
        for owner in tabs:
            await owner.connect()
            for number in range(1, 40):
                owner.request(number, text(number))
        single = market.post()
        began = trio.current_time()
        assert await running.end_of(single) == ("settled", None)
        assert trio.current_time() - began < 60


@pytest.mark.parametrize("count", [1, 300])
async def test_junk_and_replays_end_nothing(count: int, market: Market, start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        assert await owner.ask(1, "first") == "first"
        assert owner.channel is not None
        first = owner.handshake().hello
        for _ in range(count):
            for junk in (b"", b"\x00" * 9, b"\x03" + b"\x01" * 40, b"\x01" * 70, first, first[:40], b"\x02" * 60):
                owner.mailbox.put(owner.job_id, junk)
        await trio.sleep(10)
        replies = [frame for frame in owner.mailbox.to_owner[owner.job_id] if frame[0] == WELCOME]
        assert 0 < len(replies) <= 16
        assert await owner.ask(2, "second") == "second"  # on the same channel: the hello was not confirmed
        owner.send(TabClose())
        assert await running.end_of(owner.job) == ("settled", None)


async def test_damaged_frame_ends_the_channel_and_not_the_tab(start: Start, owner: TabOwner) -> None:
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox) as running:
        await owner.connect()
        assert owner.channel is not None
        sealed = owner.channel.seal(b"{}")[0]
        owner.mailbox.put(owner.job_id, sealed[:-1] + bytes((sealed[-1] ^ 1,)))
        assert await owner.receive() is None
        await owner.connect()
        for raw in (b"{", b'{"t":"request"}', b'{"t":"ack","ids":[],"voucher":{}}'):
            for frame in owner.channel.seal(raw):
                owner.mailbox.put(owner.job_id, frame)
        assert await owner.ask(1, "x") == "x"
        owner.send(TabClose())
        assert await running.end_of(owner.job) == ("settled", None)


async def test_lost_posts_and_a_full_mailbox_are_retried(start: Start, owner: TabOwner) -> None:
    failures = iter([ConnectionFailed("lost"), ConnectionFailed("lost")])

    def fail() -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure

    codes = iter(["not_claimed", "mailbox_full", "mailbox_full"])
    owner.mailbox.fail, owner.mailbox.refuse = fail, lambda _: next(codes, None)
    owner.post()
    async with start(backend=Backend(echo), mailbox=owner.mailbox):
        await owner.connect()
        assert await owner.ask(1, "x") == "x"
    assert [*failures, *codes] == []


@pytest.mark.parametrize(
    "case",
    [
        ({"designated": "0"}, {}, "unservable"),
        ({"units_in": "0"}, {}, "units_in_short"),
        ({"units_out": "0"}, {}, "units_in_short"),
        ({"model_id": "3"}, {}, "unservable"),
        ({}, {"delegated_until": START - 1}, "malformed_envelope"),
        ({}, {"wallet": Wallet(b"\x78" * 32)}, "malformed_envelope"),
    ],
    ids=["open bid", "no unit in", "no unit out", "other model", "expired", "foreign delegation"],
)
async def test_tab_that_does_not_fit_its_order_is_failed(
    case: tuple[dict[str, str], dict[str, Any], str], market: Market, start: Start, owner: TabOwner
) -> None:
    changed, terms, reason = case
    model_input = attrs.evolve(owner, **terms).terms().model_input()
    recipient = market.escrow.public if changed.get("designated") == "0" else None
    container = market.container(market.envelope(model_input).encode(), recipient)
    job = market.post(container, **{"units_in": "1", "units_out": "100", **changed})
    async with start() as running:
        assert await running.end_of(job) == ("failed", reason)
