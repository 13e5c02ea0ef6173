"""Owner of a tab, and a mailbox in memory, for tests of svcd's tabs."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio
import attrs
import trio

from common.address_book import AddressBook
from common.api.tabs import TabPost, TabRefusal
from common.box import SecretKey
from common.domains import Domains
from common.messages.tabs import TabKey, TabVoucher
from common.pricing.units import units_of
from common.scalars import hex_of
from common.secp256k1 import Wallet
from common.tab.channel import DATA, LOST, WELCOME, Channel, ChannelBinding, Frame, OwnerHandshake
from common.tab.messages import (
    OwnerMessage,
    ProviderMessage,
    SignedVoucher,
    TabAck,
    TabAnswer,
    TabClosing,
    TabDelta,
    TabFailure,
    TabRequest,
    Welcome,
    encode,
    read_provider_message,
)
from common.tab.terms import Exchange, TabDelegation, TabTerms, TabTotals, first_chain_hash, input_digest
from common.tab.transcript import TabOrder, Transcript
from tests.support.fakes.market import BOOK, START, Market

CAP: Final = 100_000


class OwnersMailbox(Protocol):
    """Mailbox as an owner uses it."""

    def put(self, job_id: bytes, frame: bytes) -> None: ...

    async def take(self, job_id: bytes) -> bytes: ...


class Seller(Protocol):
    """Provider as an owner knows it, with the owner's wallet."""

    @property
    def owner(self) -> Wallet: ...

    @property
    def provider_id(self) -> int: ...

    @property
    def box(self) -> SecretKey: ...


S = TypeVar("S", bound=Seller)


class MemoryMailbox:
    """Mailbox of a coordinator. `refuse` returns the code that frames of a tab are refused with."""

    def __init__(self) -> None:
        self.to_owner: dict[bytes, deque[bytes]] = {}
        self._to_provider: dict[bytes, deque[bytes]] = {}
        self._arrived = trio.Event()
        self.posts: list[int] = []  # frames of each post
        self.refuse: Callable[[bytes], str | None] = lambda _: None
        self.fail: Callable[[], None] = lambda: None  # may raise

    async def post(self, frames: Sequence[tuple[bytes, bytes]]) -> TabPost:
        await trio.lowlevel.checkpoint()
        self.fail()
        self.posts.append(len(frames))
        refused: dict[bytes, TabRefusal] = {}
        for job_id, frame in frames:
            code: Any = self.refuse(job_id)
            if code is None:
                self.to_owner.setdefault(job_id, deque()).append(frame)
            else:
                refused[job_id] = TabRefusal(hex_of(job_id), code)
        self._notify()
        return TabPost(list(refused.values()))

    @asynccontextmanager
    async def frames(self, job_id: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        async with aclosing(self._frames(job_id)) as frames:
            yield frames

    async def _frames(self, job_id: bytes) -> AsyncGenerator[bytes, None]:
        waiting = self._to_provider.setdefault(job_id, deque())
        while True:
            while waiting:
                yield waiting.popleft()
            await self._arrived.wait()

    def put(self, job_id: bytes, frame: bytes) -> None:
        """Put a frame of the owner into the mailbox."""
        self._to_provider.setdefault(job_id, deque()).append(frame)
        self._notify()

    async def take(self, job_id: bytes) -> bytes:
        """Return the next frame for the owner."""
        waiting = self.to_owner.setdefault(job_id, deque())
        while not waiting:
            await self._arrived.wait()
        return waiting.popleft()

    def _notify(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()


@attrs.define(eq=False)
class TabTalker(Generic[S]):
    """Owner's side of one tab, who behaves unless the test replaces a step."""

    market: S
    mailbox: OwnersMailbox
    wallet: Wallet | None = None  # by default the market's
    cap: int = CAP
    channel_key: SecretKey = attrs.field(factory=SecretKey.generate)
    voucher_key: Wallet = attrs.field(factory=lambda: Wallet(b"\x66" * 32))
    delegated_until: int = START + 10**6
    job: str = ""
    number: int = 0
    allowance: int = 0
    chain: bytes = b""
    totals: TabTotals = attrs.field(factory=TabTotals)
    acknowledged: list[int] = attrs.field(factory=list)
    inputs: dict[int, dict[str, object]] = attrs.field(factory=dict)
    answers: dict[int, TabAnswer] = attrs.field(factory=dict)
    failures: dict[int, str] = attrs.field(factory=dict)
    chunks: dict[int, list[dict[str, object]]] = attrs.field(factory=dict)
    closing: str | None = None
    channel: Channel | None = None
    book: AddressBook = BOOK

    @property
    def domains(self) -> Domains:
        return Domains.of(self.book)

    @property
    def job_id(self) -> bytes:
        return bytes.fromhex(self.job[2:])

    def terms(self) -> TabTerms:
        owner = self.wallet or self.market.owner
        key = TabKey(self.voucher_key.address, self.market.provider_id, self.delegated_until)
        signature = owner.sign(self.domains.tabs.digest(key))
        delegation = TabDelegation(self.voucher_key.address, self.delegated_until, signature)
        return TabTerms(self.channel_key.public, delegation)

    def handshake(self) -> OwnerHandshake:
        place = ChannelBinding(self.book.chain_id, self.book.job_registry, self.job_id)
        return OwnerHandshake(place, self.channel_key, self.market.box.public)

    async def connect(self) -> Welcome:
        """Open a new channel, saying hello until a welcome comes."""
        for _ in range(100):
            handshake = self.handshake()
            self.mailbox.put(self.job_id, handshake.hello)
            with anyio.move_on_after(5):
                while True:
                    frame = Frame.parse(await self.mailbox.take(self.job_id))
                    if (frame.kind, frame.channel_id) == (WELCOME, handshake.channel_id):
                        self.channel, payload = handshake.finish(frame)
                        welcome = read_provider_message(payload)
                        assert isinstance(welcome, Welcome)
                        return welcome
        raise AssertionError("the provider does not welcome")

    def send(self, message: OwnerMessage) -> None:
        assert self.channel is not None
        for frame in self.channel.seal(encode(message)):
            self.mailbox.put(self.job_id, frame)

    def voucher(self, **changed: Any) -> SignedVoucher:
        """Return the next voucher."""
        self.number += 1
        charged = self.charged
        fields = {"number": self.number, "allowance": self.allowance, "acknowledged": charged, "chain": self.chain}
        message = TabVoucher(self.job_id, **{**fields, **changed})
        signature = self.voucher_key.sign(self.domains.tabs.digest(message))
        return SignedVoucher(message.number, message.allowance, message.acknowledged, message.chain, signature)

    @property
    def charged(self) -> int:
        return self.totals.charged_units(100, 200)

    def request(self, request_id: int, model_input: dict[str, object], voucher: SignedVoucher | None = None) -> None:
        """Send a request, with an allowance for all open ones."""
        self.inputs[request_id] = model_input
        totals = self.totals
        for each in self.inputs.keys() - set(self.acknowledged) - self.failures.keys():
            most = units_of("text", self.inputs[each])
            totals = totals.plus(most.units_in, most.units_out)
        self.allowance = min(self.cap, totals.charged_units(100, 200))
        self.send(TabRequest(request_id, model_input, self.voucher() if voucher is None else voucher))

    def acknowledge(self, *request_ids: int) -> None:
        for request_id in request_ids:
            exchange = self.exchange(request_id)
            self.chain = exchange.chain_hash(self.chain)
            self.totals = self.totals.plus(exchange.units_in, exchange.units_out)
        self.acknowledged += request_ids
        self.allowance = max(self.allowance, self.charged)
        self.send(TabAck(request_ids, self.voucher()))

    def exchange(self, request_id: int) -> Exchange:
        answer, digest = self.answers[request_id], input_digest(self.inputs[request_id])
        return Exchange(request_id, digest, answer.output, answer.usage, answer.units_in, answer.units_out)

    async def receive(self) -> ProviderMessage | None:
        """Return the next message, or None if the provider lost the channel."""
        while True:
            frame = Frame.parse(await self.mailbox.take(self.job_id))
            channel = self.channel
            if channel is None or frame.channel_id != channel.id:
                continue
            if frame.kind == LOST:
                self.channel = None
                return None
            if frame.kind != DATA or (raw := channel.open(frame)) is None:
                continue
            message = read_provider_message(raw)
            self._note(message)
            return message

    def _note(self, message: ProviderMessage) -> None:
        match message:
            case TabAnswer():
                assert self.answers.setdefault(message.id, message) == message
            case TabFailure():
                self.failures[message.id] = message.code
            case TabDelta():
                chunks = self.chunks.setdefault(message.id, [])
                assert message.first_chunk_index <= len(chunks)
                chunks += message.chunks[len(chunks) - message.first_chunk_index :]
            case TabClosing():
                self.closing = message.reason

    async def until_answered(self, *request_ids: int) -> None:
        """Receive until these requests have an answer or failed."""
        with anyio.fail_after(1000):
            while not set(request_ids) <= self.answers.keys() | self.failures.keys():
                assert await self.receive() is not None, "the channel was lost"

    async def ask(self, request_id: int, text: str = "hello", units_out: int = 50) -> object:
        """Run one request, acknowledge the answer and return it."""
        self.request(request_id, {"input": text, "max_tokens": units_out})
        await self.until_answered(request_id)
        self.acknowledge(request_id)
        return self.answers[request_id].output

    def checked(self, output: object, completion_tok: int) -> Transcript:
        """Return the transcript of the settled tab after checking it."""
        transcript = Transcript.read(output)
        owner = (self.wallet or self.market.owner).address
        order = TabOrder(self.job_id, owner, self.market.provider_id, 100, 200, completion_tok)
        assert transcript.find_fault(order, self.domains) is None
        assert transcript.acknowledged_units == completion_tok
        return transcript


@attrs.define(eq=False)
class TabOwner(TabTalker[Market]):
    """Owner of a tab in the market in memory."""

    def post(self, **changed: Any) -> str:
        """Post the order of the tab."""
        market, own = self.market, self.market.owner
        market.owner = self.wallet or own
        try:
            container = market.container(market.envelope(self.terms().model_input()).encode())
            self.job = market.post(container, **{"units_in": "1", "units_out": str(self.cap), **changed})
        finally:
            market.owner = own
        self.chain = first_chain_hash(self.job_id)
        return self.job

    def transcript(self, output: object) -> Transcript:
        """Return the transcript of the settled tab after checking it."""
        return self.checked(output, int(self.market.jobs[self.job]["completion_tok"]))
