"""Requests over one tab: answers, acknowledgements, lost frames, and providers that lie."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from common.api.tabs import TabPost
from common.messages.tabs import TabVoucher
from common.tab.channel import HELLO, Frame, lost_frame
from common.tab.messages import DirectEndpoint, OwnerMessage, ProviderMessage, TabAck, TabClose, TabDelta, TabRequest
from svc.core.retries import RetryPolicy
from svc.core.tabs import first_choice_text
from svc.errors import ConnectionFailed, NoProvider, OverCeiling, TabEnded, TabFaulty, TabRequestFailed
from svc.tabs.tab import Tab
from svc.wire.tabs import TabRoutes, bearer_caller
from svc.wire.transport import Clock, Transport
from tests.unit.svc.fake_coordinator import Answer, until
from tests.unit.svc.tabs.market import (
    GATEWAY,
    TabMarket,
    TabProvider,
    answer_to,
    ask,
    chat,
    delta,
    failing_with,
    question,
    texts,
)


async def test_answers_are_streamed_and_charged_once() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        stream = await tab.request(question("why is it blue"))
        assert texts([chunk async for chunk in stream]) == "why is it blue "
        first = await stream.answer()
        second = await ask(tab, "and red")
    assert (first.output, second.output) == (chat("why is it blue "), chat("and red "))
    outcome = tab.outcome
    assert outcome is not None
    assert (outcome.requests, outcome.fault, outcome.closed) == (2, None, "owner")
    assert outcome.charged == outcome.acknowledged == market.tab.charge()
    assert outcome.cost + outcome.returned == tab.file.amount


@pytest.mark.parametrize("form", ["chat", "response", "response without indexes"])
async def test_text_that_was_not_streamed_is_the_last_chunk(form: str) -> None:
    """A provider stops a stream that is too long for a tab."""

    def event(text: str) -> dict[str, object]:
        indexes = {"output_index": 0, "content_index": 0} if form == "response" else {}
        return {"type": "response.output_text.delta", "delta": text} | indexes

    output = {"output": [{"type": "message", "content": [{"type": "output_text", "text": "one two "}]}]}
    streamed, whole = (delta("one "), chat("one two ")) if form == "chat" else (event("one "), output)

    def cut(_: TabProvider, request: TabRequest) -> Sequence[ProviderMessage]:
        return [TabDelta(request.id, 0, (streamed,)), answer_to(request, output=whole)[-1]]

    market = TabMarket(cut)
    async with market.client() as client:
        async with client.tabs.open("demo/chat") as tab:
            stream = await tab.request(question("one two"))
            assert [first_choice_text(chunk) async for chunk in stream] == ["one ", "two "]
            assert (await stream.answer()).output == whole
        assert await client.tabs.faulty_providers() == {}


async def test_concurrent_requests_share_a_tab() -> None:
    market, replies = TabMarket(), {}
    async with market.client() as client, client.tabs.open("demo/chat") as tab, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            replies[number] = await ask(tab, f"number {number}")

        for number in range(100):
            tasks.start_soon(one, number)
    assert {n: reply.output for n, reply in replies.items()} == {n: chat(f"number {n} ") for n in range(100)}
    assert len(market.tab.acknowledged) == 100


@pytest.mark.parametrize(
    ("tamper", "noticed"),
    [
        (lambda frames: [], False),
        (lambda frames: [*frames, *frames], True),
        (lambda frames: [frames[-1], *frames[:-1]] if len(frames) > 1 else [frames[0][:-1] + b"\x00"], True),
    ],
    ids=["dropped", "repeated", "changed"],
)
async def test_bad_frames_lead_to_a_new_handshake(
    tamper: Callable[[list[bytes]], list[bytes]], *, noticed: bool
) -> None:
    """The client notices lost frames only when its stream ends."""
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        market.tab.tamper = tamper
        stream = await tab.request(question("two words"))
        await anyio.sleep(1)
        assert (market.tab.hellos > 1) is noticed
        market.tab.tamper = lambda frames: frames
        market.tab.cut_stream()
        assert (await stream.answer()).output == chat("two words ")
    assert market.tab.runs == [1, 2]
    assert market.tab.hellos > 1
    assert tab.outcome is not None
    assert tab.outcome.fault is None


async def test_lost_answer_is_found_by_its_silence() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        market.tab.tamper = lambda frames: frames[:-1]
        stream = await tab.request(question("two words"))
        await until(lambda: market.tab.runs == [1, 2])
        market.tab.tamper = lambda frames: frames
        assert (await stream.answer()).output == chat("two words ")
    assert market.tab.hellos == 2
    assert market.tab.runs == [1, 2]


async def test_lost_acknowledgement_is_sent_again() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        provider = market.tab
        take: Callable[[OwnerMessage], None] = provider.take

        def ignore_acks(message: OwnerMessage) -> None:
            if not isinstance(message, TabAck):
                take(message)

        monkey: Any = provider
        monkey.take = ignore_acks
        await ask(tab, "one")
        await until(lambda: tab.acknowledged > 0)
        assert list(provider.waiting) == [1]
        monkey.take = take
        provider.cut_stream()
        await anyio.sleep(1)
        await until(lambda: not provider.waiting)
    assert tab.outcome is not None
    assert tab.outcome.charged == tab.acknowledged > 0


def lying(**changed: object) -> Callable[[TabProvider, TabRequest], Sequence[ProviderMessage]]:
    return lambda _, request: answer_to(request, **changed)


@pytest.mark.parametrize(
    "changed",
    [{"units_in": 500}, {"units_out": 17}, {"output": chat("another text")}, {"id": 9}],
    ids=["input overstated", "output overstated", "other text than streamed", "unknown id"],
)
async def test_wrong_answer_is_neither_paid_nor_repeated(changed: dict[str, object]) -> None:
    market = TabMarket(lying(**changed))
    async with market.client() as client:
        with pytest.raises(TabFaulty) as raised:
            async with client.tabs.open("demo/chat") as tab:
                await ask(tab, "is this true")
        assert raised.value.code == "wrong_answer"
        assert market.tab.acknowledged == []
        with pytest.raises(NoProvider):
            async with client.tabs.open("demo/chat"):
                pass
        assert list(await client.tabs.faulty_providers()) == [7]
        assert await client.tabs.forgive(7)


async def test_overcharge_with_an_unreadable_transcript_is_remembered() -> None:
    def overcharge(provider: TabProvider) -> None:
        provider.overcharge = 5

    async def ask_and_spoil(tab: Tab) -> None:
        await ask(tab, "one")
        market.coordinator.tell(f"GET {GATEWAY}/ipfs/{tab.id[2:20]}", Answer(200, b"not a sealed result"))

    market = TabMarket(setup=overcharge)
    async with market.client() as client:
        with pytest.raises(TabFaulty) as raised:
            async with client.tabs.open("demo/chat") as tab:
                await ask_and_spoil(tab)
        assert raised.value.code == "overcharged"
        assert list(await client.tabs.faulty_providers()) == [7]


async def test_failed_request_is_not_charged() -> None:
    market = TabMarket(failing_with("too_long"))
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        with pytest.raises(TabRequestFailed) as raised:
            await ask(tab, "one")
    assert raised.value.code == "too_long"
    assert tab.outcome is not None
    assert (tab.outcome.charged, tab.outcome.requests) == (0, 0)


async def test_full_tab_refuses_further_requests() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat", units_out=60) as tab:
        await ask(tab, "one")
        with pytest.raises(TabEnded) as raised:
            await tab.request({**question("two"), "max_tokens": 100})
    assert raised.value.code == "tab_full"
    assert market.tab.voucher is not None
    assert market.tab.voucher.allowance <= 60


async def test_tab_above_the_ceiling_is_not_posted() -> None:
    market = TabMarket()
    async with market.client() as client:
        with pytest.raises(OverCeiling):
            async with client.tabs.open("demo/chat", max_amount=5000):
                pass
    assert market.tabs == []


async def test_unclaimed_tab_is_cancelled() -> None:
    market = TabMarket(claims=None)
    async with market.client() as client:
        with pytest.raises(NoProvider, match="cancelled"):
            async with client.tabs.open("demo/chat"):
                pass
    assert any(route.endswith("/cancel") for route in market.coordinator.routes())


async def test_provider_without_tabs_is_not_chosen() -> None:
    market = TabMarket(evidence={"svc_bundle": {"v": 1}})
    async with market.client() as client:
        with pytest.raises(NoProvider, match="tabs"):
            async with client.tabs.open("demo/chat"):
                pass


async def test_tab_that_the_provider_closes_takes_no_request() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        await until(lambda: not market.tab.waiting)
        market.tab.close("idle")
        market.tab.settle("idle")
        await anyio.sleep(1)
        with pytest.raises(TabEnded):
            await tab.request(question("two"))
    assert tab.outcome is not None
    assert (tab.outcome.closed, tab.outcome.requests) == ("idle", 1)


async def test_direct_server_cannot_hide_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's own server neither answers nor ends its stream when the job is over."""

    def offer(provider: TabProvider) -> None:
        provider.direct = DirectEndpoint("https://a", "certificate", "token")

    @asynccontextmanager
    async def routes(_: object, __: str, clock: Clock) -> AsyncIterator[TabRoutes]:
        yield TabRoutes(
            Transport(market.coordinator._http(), clock, RetryPolicy(max_retries=0)), bearer_caller("token")
        )

    monkeypatch.setattr("svc.tabs.tab.direct_routes", routes)
    market = TabMarket(lambda *_: [], setup=offer)
    async with market.client() as client, client.tabs.open("demo/chat", window="1h") as tab:
        stream = await tab.request(question("one"))
        await anyio.sleep(1)
        assert tab.is_direct
        monkeypatch.setattr(market.tab, "notify", lambda: None)
        market.tab.settle("window")
        with anyio.fail_after(3_700), pytest.raises(TabEnded):
            await stream.answer()


async def test_tab_falls_back_to_the_mailbox_when_direct_posts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's own server makes handshakes, but takes no further frame."""

    def offer(provider: TabProvider) -> None:
        provider.direct = DirectEndpoint("https://a", "certificate", "token")

    class HandshakesOnly(TabRoutes):
        async def post(self, frames: Sequence[tuple[bytes, bytes]]) -> TabPost:
            if any(Frame.parse(frame).kind != HELLO for _, frame in frames):
                raise ConnectionFailed("the body is too large")
            return await super().post(frames)

    @asynccontextmanager
    async def routes(_: object, __: str, clock: Clock) -> AsyncIterator[TabRoutes]:
        transport = Transport(market.coordinator._http(), clock, RetryPolicy(max_retries=0))
        yield HandshakesOnly(transport, bearer_caller("token"))

    monkeypatch.setattr("svc.tabs.tab.direct_routes", routes)
    market = TabMarket(setup=offer)
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        with anyio.fail_after(60):
            assert (await ask(tab, "one")).output == chat("one ")
        assert not tab.is_direct
    assert market.tab.hellos == 3


async def test_repeated_loss_of_the_channel_slows_handshakes() -> None:
    """The provider makes handshakes, and reports each channel as lost at its first request."""
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        provider = market.tab

        def lose(_: OwnerMessage) -> None:
            assert provider.channel is not None
            provider.send_frames([lost_frame(provider.channel.id)])

        take, monkey = provider.take, cast(Any, provider)
        monkey.take = lose
        stream = await tab.request(question("two words"))
        await anyio.sleep(60)
        assert 5 < provider.hellos < 25
        monkey.take = take
        assert (await stream.answer()).output == chat("two words ")


async def test_kept_tab_acknowledges_before_it_is_left() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        tab.keep()
    assert (list(market.tab.waiting), market.tab.closed) == ([], None)


async def test_request_refused_by_a_closing_tab_is_not_sent() -> None:
    """The provider may receive a request after it has decided to close, and does not run it."""
    market = TabMarket(failing_with("tab_closed"))
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        with pytest.raises(TabEnded) as refused:
            await ask(tab, "one")
        assert (refused.value.code, refused.value.retryable) == ("tab_closing", True)


async def test_closing_tab_sends_no_request() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        market.tab.close("idle")
        await until(lambda: not tab.is_open)
        with pytest.raises(TabEnded) as refused:
            await ask(tab, "one")
        assert (refused.value.code, market.tab.runs) == ("tab_closing", [])


async def test_vouchers_are_signed_by_the_delegated_key() -> None:
    market = TabMarket()
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        await until(lambda: not market.tab.waiting)
        voucher = market.tab.voucher
        domains = (await client.orders.account.market()).domains
        assert voucher is not None
        assert isinstance(voucher.message(market.tab.job_id), TabVoucher)
        assert (
            domains.tabs.signer(voucher.message(market.tab.job_id), voucher.signature)
            == tab.file.voucher_wallet.address
        )
        assert market.tab.terms.delegation.is_signed_by(tab.file.owner, 7, domains)


async def test_chunk_with_a_wrong_index_is_blamed() -> None:
    choice = {"index": [0], "delta": {"content": "text"}}
    market = TabMarket(lambda _, request: [TabDelta(request.id, 0, ({"choices": [choice]},))])
    async with market.client() as client:
        with pytest.raises(TabFaulty, match="index"):
            async with client.tabs.open("demo/chat") as tab:
                await ask(tab, "one")


async def test_tab_is_closed_when_all_its_chunks_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No single answer is too long, so the provider is not blamed."""
    monkeypatch.setattr("svc.core.tabs.MAX_OPEN_STREAM_BYTES", 5_000)
    market = TabMarket(lambda _, request: [TabDelta(request.id, 0, (delta("x" * 2_000),))])
    async with market.client() as client:
        async with client.tabs.open("demo/chat") as tab:
            streams = [await tab.request(question(text)) for text in ("one", "two", "three")]
            with pytest.raises(TabEnded) as raised:
                await streams[2].answer()
            assert raised.value.code == "tab_full"
            assert not tab.is_open
            assert sum(request.stream_bytes for request in tab.owner_tab.open_requests.values()) < 5_000
        assert await client.tabs.faulty_providers() == {}


async def test_wrong_answer_is_reported_after_a_new_handshake() -> None:
    """The provider ignores the close, and its next welcome lists the wrong answer as one to acknowledge."""
    market = TabMarket(lying(output=chat("another text")))
    async with market.client() as client, client.tabs.open("demo/chat") as tab:
        provider = market.tab
        take, monkey = provider.take, cast(Any, provider)
        monkey.take = lambda message: None if isinstance(message, TabClose) else take(message)
        with pytest.raises(TabFaulty):
            await ask(tab, "is this true")
        await anyio.sleep(1)
        monkey.take = take
        provider.cut_stream()
        await anyio.sleep(1)
        assert provider.hellos == 2
        with pytest.raises(TabFaulty):
            await tab.request(question("two"))
