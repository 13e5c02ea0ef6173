"""Tabs of a simulated run: a mailbox that loses, repeats and delays frames, and owners who talk over it."""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

import attrs
import trio

from common.api.tabs import TabPost
from common.refusal import Refused
from common.secp256k1 import Wallet
from common.tab.messages import TabClose, Welcome
from common.tab.terms import TabTotals, first_chain_hash
from svc.wire.transport import ConnectionFailed
from tests.simulation.market import SimulatedMarket
from tests.support.fakes.tabs import MemoryMailbox, TabOwner

_LATENCY: Final = 0.2
_FAULT_RATES: Final = (0.0, 0.02, 0.1)
_WELCOME_S: Final = 15.0
_LONGEST_TALK_S: Final = 60.0
_UNITS_OUT: Final = 50


class SimulatedMailbox(MemoryMailbox):
    """Mailbox with faults until the plan's noisy time is over."""

    def __init__(self, seed: int, noisy: float, moment: Callable[[str], None]) -> None:
        super().__init__()
        self._chance = random.Random(f"mailbox {seed}")
        self._rate = self._chance.choice(_FAULT_RATES)
        self._noisy, self._moment = noisy, moment

    async def post(self, frames: Sequence[tuple[bytes, bytes]]) -> TabPost:
        self._moment("frames set out")
        await trio.sleep(self._chance.uniform(0, _LATENCY))
        if self._fails():
            if self._chance.random() < 0.5:
                await super().post(frames)
            raise ConnectionFailed("as planned")
        kept = [frame for frame in frames if not self._fails()]
        answer = await super().post(self._twisted(kept))
        self._moment("the answer to frames sets out")
        await trio.sleep(self._chance.uniform(0, _LATENCY))
        return answer

    @asynccontextmanager
    async def frames(self, job_id: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        async with super().frames(job_id) as frames, aclosing(self._delivered(frames)) as delivered:
            yield delivered

    async def _delivered(self, frames: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for frame in frames:
            self._moment("a frame arrives")
            await trio.sleep(self._chance.uniform(0, _LATENCY))
            if self._fails():
                match self._chance.choice(("lost", "twice", "garbled", "cut")):
                    case "lost":
                        continue
                    case "twice":
                        yield frame
                    case "garbled":
                        yield frame[:-1] + bytes((frame[-1] ^ 1,))
                        continue
                    case _:
                        return
            yield frame

    def _twisted(self, frames: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if len(frames) > 1 and self._fails():
            return [*frames[1:], frames[0]]
        return frames + frames[:1] if self._fails() else frames

    def _fails(self) -> bool:
        return trio.current_time() < self._noisy and self._chance.random() < self._rate


@attrs.define(eq=False)
class SimulatedOwner(TabOwner):
    """Owner who wants `wanted` answers, opens a new channel when one breaks, and then closes the tab or disappears."""

    wanted: int = 1
    chance: random.Random = attrs.field(factory=lambda: random.Random(0))
    breaks: Callable[[str], None] = print
    has_ended: Callable[[], bool] = lambda: False
    most_allowed: int = 0  # highest allowance that the owner signed
    greedy: set[int] = attrs.field(factory=set)  # requests with too small an allowance

    def text(self, request_id: int) -> str:
        return f"{self.job[-8:]} {request_id}"

    async def live(self) -> None:
        while not self.has_ended():
            welcome = None
            with trio.move_on_after(_WELCOME_S):
                welcome = await self.connect()
            if welcome is None:
                continue
            with trio.move_on_after(self.chance.uniform(5, _LONGEST_TALK_S)):
                try:
                    if await self._talk(welcome):
                        return
                except Refused:  # the channel broke: a frame was lost, repeated or changed
                    await trio.sleep(1)
                except (AssertionError, KeyError) as wrong:
                    self.breaks(f"sends its owner something else than answers to its requests: {wrong!r}")
                    return

    async def _talk(self, welcome: Welcome) -> bool:
        """Return True when the tab needs nothing more, and False when the channel is lost."""
        self._catch_up(welcome)
        for request_id in self._unanswered():
            self._request(request_id)
        while len(self.answers) + len(self.failures) < self.wanted:
            if not self._unanswered():
                self._request(len(self.inputs) + 1)
            if await self.receive() is None:
                return False
            self._check_answers()
            if self.chance.random() < 0.8:
                self._acknowledge_all()
            await trio.sleep(self.chance.uniform(0, 4))
        self._acknowledge_all()
        if self.chance.random() < 0.5:
            self.send(TabClose())
        # The ack may be lost. See whether the tab ends, or what a new channel reports.
        return await self._ends_with_acks()

    async def _ends_with_acks(self) -> bool:
        await trio.sleep(3)
        return self.has_ended() or self.chance.random() < 0.3

    def _catch_up(self, welcome: Welcome) -> None:
        """Repeat acknowledgements that the provider did not get."""
        acknowledged = list(self.acknowledged)
        chain, totals, known = first_chain_hash(self.job_id), TabTotals(), 0
        while totals.charged_units(100, 200) < welcome.acknowledged and known < len(acknowledged):
            exchange = self.exchange(acknowledged[known])
            chain, totals = exchange.chain_hash(chain), totals.plus(exchange.units_in, exchange.units_out)
            known += 1
        if totals.charged_units(100, 200) != welcome.acknowledged:
            self.breaks(f"welcomes with {welcome.acknowledged} units acknowledged, which its owner never did")
        lost = acknowledged[known:]
        if not set(lost) <= set(welcome.answered_ids):
            self.breaks(f"lost the answers to {set(lost) - set(welcome.answered_ids)}, which its owner acknowledged")
        self.acknowledged, self.chain, self.totals = acknowledged[:known], chain, totals
        if lost:
            self.acknowledge(*lost)

    def _unanswered(self) -> list[int]:
        return sorted(self.inputs.keys() - self.answers.keys() - self.failures.keys())

    def _request(self, request_id: int) -> None:
        model_input: dict[str, object] = {"input": self.text(request_id), "max_tokens": _UNITS_OUT}
        if request_id in self.greedy or (request_id not in self.inputs and self.chance.random() < 0.1):
            self.greedy.add(request_id)
            self.request(request_id, model_input, self.voucher(allowance=self.charged))
            return
        self.request(request_id, model_input)
        self.most_allowed = max(self.most_allowed, self.allowance)

    def _check_answers(self) -> None:
        for request_id, answer in self.answers.items():
            if answer.output != {"input": self.text(request_id), "max_tokens": _UNITS_OUT}:
                self.breaks(f"answers request {request_id} with {answer.output}")
        for request_id, chunks in self.chunks.items():
            if any(chunk.get("of") != self.text(request_id) for chunk in chunks):
                self.breaks(f"streams something else for request {request_id}")

    def _acknowledge_all(self) -> None:
        ready = sorted(self.answers.keys() - set(self.acknowledged))
        if ready:
            self.acknowledge(*ready)
            self.most_allowed = max(self.most_allowed, self.allowance)


def owner_of(
    market: SimulatedMarket, mailbox: MemoryMailbox, wanted: int, number: int, breaks: Callable[[str], None]
) -> SimulatedOwner:
    """Return an owner without a posted tab."""
    wallet = Wallet(number.to_bytes(32, "big"))
    owner = SimulatedOwner(market, mailbox, voucher_key=wallet, wanted=wanted, chance=random.Random(f"owner {number}"))
    owner.breaks = lambda what: breaks(f"{market.named(owner.job)} {what}")
    owner.has_ended = lambda: market.jobs.get(owner.job, {}).get("state") in (2, 3)
    return owner
