"""A market of one fake coordinator, with a provider of tabs. The provider is honest, unless a test says otherwise."""

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import anyio
import attrs

from common.container import open_with_secret
from common.envelope import Envelope, ResultBody
from common.pricing.units import units_of
from common.refusal import Refused
from common.scalars import base64_of, hex_of, read_base64
from common.sealed_result import seal_result
from common.tab import channel
from common.tab.channel import Channel, ChannelBinding, Frame
from common.tab.messages import (
    DirectEndpoint,
    ProviderMessage,
    SignedVoucher,
    TabAck,
    TabAnswer,
    TabClose,
    TabClosing,
    TabDelta,
    TabFailure,
    TabRequest,
    Welcome,
    encode,
    read_owner_message,
)
from common.tab.terms import Exchange, TabTerms, announcement, first_chain_hash, input_digest
from common.tab.transcript import Transcript, sum_exchange_units
from svc.client import Client
from svc.tabs.tab import Tab, TabReply
from tests.unit.svc.fake_coordinator import (
    BOX_SECRET,
    CANDIDATE,
    JOB_REGISTRY,
    MODEL,
    WALLET,
    Answer,
    Asked,
    FakeCoordinator,
    failing,
    job,
    posted,
    provider,
    quoting,
)

GATEWAY: Final = "http://gateway"
REGISTRY: Final = bytes.fromhex(JOB_REGISTRY[2:])
_DETAILS: Final = {"model_id": "2", "enabled": True, "endpoint": "/v1/chat/completions"}
LISTED: Final = {**MODEL, "id": "demo/chat", "svc": _DETAILS}
Say = Callable[["TabProvider", TabRequest], Sequence[ProviderMessage]]


def chat(text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def delta(text: str) -> dict[str, object]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}


def question(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 16}


def answer_to(request: TabRequest, **changed: Any) -> list[ProviderMessage]:
    """Return the deltas and the answer of an honest provider, which repeats the question. `changed`: in the answer."""
    text = request.input["messages"][0]["content"]  # type: ignore[index] # of the tests' questions
    words = [f"{word} " for word in str(text).split()]
    usage: dict[str, object] = {"completion_tokens": len(words)}
    fields = {
        "id": request.id,
        "output": chat("".join(words)),
        "usage": usage,
        "units_in": units_of("text", request.input).units_in,
        "units_out": len(words),
    }
    deltas: list[ProviderMessage] = [TabDelta(request.id, n, (delta(word),)) for n, word in enumerate(words)]
    return [*deltas, TabAnswer(**(fields | changed))]


@attrs.define(eq=False, slots=False)
class TabProvider:
    """Provider of one tab. `say` makes the messages for a request. `tamper` changes the frames that are sent."""

    job_id: bytes
    envelope: Envelope
    order: dict[str, Any]
    say: Say
    tamper: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
    overcharge: int = 0
    direct: DirectEndpoint | None = None
    channel: Channel | None = None
    hellos: int = 0
    voucher: SignedVoucher | None = None
    acknowledged: list[Exchange] = attrs.field(factory=list)
    chain: bytes = b""
    waiting: dict[int, Exchange] = attrs.field(factory=dict)
    runs: list[int] = attrs.field(factory=list)
    said: dict[int, Sequence[ProviderMessage]] = attrs.field(factory=dict)
    outbox: list[bytes] = attrs.field(factory=list)
    readers: int = 0
    closed: str | None = None
    sealed: bytes = b""
    completion_tok: int = 0
    changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def place(self) -> ChannelBinding:
        return ChannelBinding(31337, REGISTRY, self.job_id)

    @property
    def terms(self) -> TabTerms:
        return TabTerms.read(self.envelope.input)

    def receive(self, raw: bytes) -> None:
        frame = Frame.parse(raw)
        if frame.kind == channel.HELLO:
            self.hellos += 1
            number, charge = (0, 0) if self.voucher is None else (self.voucher.number, self.voucher.acknowledged)
            welcome = Welcome(4, 3600, number, charge, tuple(self.waiting), self.direct)
            self.channel, sent = channel.accept_hello(
                self.place, BOX_SECRET, self.terms.channel_key, frame, encode(welcome)
            )
            self.send_frames([sent])
            return
        if self.channel is None or frame.channel_id != self.channel.id:
            self.send_frames([channel.lost_frame(frame.channel_id)])
            return
        try:
            message = self.channel.open(frame)
        except Refused:
            self.channel = None
            return
        if message is not None:
            self.take(read_owner_message(message))

    def take(self, message: TabRequest | TabAck | TabClose) -> None:
        match message:
            case TabRequest():
                self.check(message.voucher)
                self.run(message)
            case TabAck():
                for id in message.ids:
                    exchange = self.waiting.pop(id)
                    self.acknowledged.append(exchange)
                    self.chain = exchange.chain_hash(self.chain or first_chain_hash(self.job_id))
                self.check(message.voucher)
                assert message.voucher.chain == self.chain
                assert message.voucher.acknowledged == self.charge()
            case TabClose():
                self.settle("owner")

    def check(self, voucher: SignedVoucher) -> None:
        assert self.voucher is None or voucher.number > self.voucher.number
        assert voucher.allowance <= int(self.order["units_out"])
        self.voucher = voucher

    def charge(self) -> int:
        return sum_exchange_units(self.acknowledged).charged_units(
            int(self.order["rate_in"]), int(self.order["rate_out"])
        )

    def run(self, request: TabRequest) -> None:
        if request.id not in self.said:
            self.runs.append(request.id)
            self.said[request.id] = self.say(self, request)
        for message in self.said[request.id]:
            if isinstance(message, TabAnswer) and message.id == request.id and message.id not in self.waiting:
                digest = input_digest(request.input)
                self.waiting[message.id] = Exchange(
                    message.id, digest, message.output, message.usage, message.units_in, message.units_out
                )
            self.send(message)

    def send(self, message: ProviderMessage) -> None:
        if self.channel is not None:
            self.send_frames(self.channel.seal(encode(message)))

    def send_frames(self, frames: list[bytes]) -> None:
        self.outbox += self.tamper(frames)
        self.notify()

    def close(self, reason: str) -> None:
        """Close as an idle or draining provider does."""
        self.send(TabClosing(reason))

    def settle(self, reason: str) -> None:
        voucher = self.voucher
        if voucher is not None and not self.acknowledged:
            voucher = voucher if voucher.acknowledged == 0 else None
        transcript = Transcript(reason, tuple(self.acknowledged), voucher, self.terms.delegation)
        self.completion_tok = transcript.acknowledged_units + self.overcharge
        body = ResultBody(self.job_id, transcript.output(), {}).encode()
        self.sealed = seal_result(self.envelope.result_key, 31337, REGISTRY, self.job_id, body)
        self.closed = reason
        self.notify()

    def notify(self) -> None:
        event, self.changed = self.changed, anyio.Event()
        event.set()

    async def stream(self) -> AsyncIterator[bytes]:
        self.readers += 1
        number = self.readers
        yield b": open\n\n"
        while self.readers == number:
            while self.outbox:
                yield f"event: frame\ndata: {base64_of(self.outbox.pop(0))}\n\n".encode()
            if self.closed is not None:
                yield b"event: end\ndata: {}\n\n"
                return
            await self.changed.wait()

    def cut_stream(self) -> None:
        """End the current stream, as a lost connection does."""
        self.readers += 1
        self.notify()


def honest(_: TabProvider, request: TabRequest) -> Sequence[ProviderMessage]:
    return answer_to(request)


def failing_with(code: str) -> Say:
    return lambda _, request: [TabFailure(request.id, code)]


@attrs.define
class TabMarket:
    """`claims`: looks of the mailbox until the provider has claimed a tab; None: never."""

    say: Say = honest
    coordinator: FakeCoordinator = attrs.field(factory=FakeCoordinator)
    evidence: object = attrs.field(factory=announcement)
    claims: int | None = 1
    tabs: list[TabProvider] = attrs.field(factory=list)
    setup: Callable[[TabProvider], None] = lambda _: None
    posts: list[list[tuple[str, bytes]]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        tell = self.coordinator.tell
        tell("GET /v1/models/demo/chat", Answer(200, LISTED))
        tell("GET /evm/providers/7", lambda _: Answer(200, provider(evidence=self.evidence)))
        tell("POST /v1/jobs", self._order)
        tell("POST /v1/tabs/messages", self._messages)
        tell("GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337}))
        tell("POST /auth/session", Answer(201, {"token": "token", "expires_at": 9_999_999_999}))

    @property
    def tab(self) -> TabProvider:
        return self.tabs[-1]

    def client(self, environment: dict[str, str] | None = None, **options: Any) -> Client:
        return Client(
            http=self.coordinator._http(),
            environment=environment or {},
            wallet_key=WALLET,
            gateways=GATEWAY,
            known_markets=None,
            on_first_use=lambda _: None,
            **options,
        )

    def _order(self, asked: Asked) -> Answer:
        if "c" not in asked.body:
            return Answer(402, {"candidates": [CANDIDATE]})
        if "auth_sig" not in asked.body:
            return quoting()(asked)
        container = read_base64(asked.body["container"], 1 << 20, "container")
        envelope = Envelope.parse(open_with_secret(BOX_SECRET, 31337, REGISTRY, WALLET.address, container))
        job_id = asked.body["job_id"]
        tab = TabProvider(bytes.fromhex(job_id[2:]), envelope, asked.body, self.say)
        self.setup(tab)
        self.tabs.append(tab)
        looks = [self.claims]

        def frames(_: Asked) -> Answer:
            if looks[0] is None or looks[0] > 0:
                looks[0] = looks[0] and looks[0] - 1
                return failing(409, "invalid_request_error", "not_claimed")
            if tab.closed is not None:
                return failing(409, "invalid_request_error", "not_claimed")
            return Answer(200, tab.stream(), {"content-type": "text/event-stream"})

        tell = self.coordinator.tell
        tell(f"GET /v1/tabs/{job_id}/messages", frames)
        tell(f"GET /v1/jobs/{job_id}", lambda _: Answer(200, self._shown(tab, claimed=looks[0] == 0)))
        tell(f"GET {GATEWAY}/ipfs/{job_id[2:20]}", lambda _: Answer(200, tab.sealed))
        tell(f"POST /v1/jobs/{job_id}/cancel", Answer(200, {"job_id": job_id, "tx_hash": "0x" + "ee" * 32}))
        return posted(asked)

    def _shown(self, tab: TabProvider, *, claimed: bool) -> dict[str, Any]:
        order = {name: str(tab.order[name]) for name in ("rate_in", "rate_out", "units_in", "units_out", "designated")}
        more: dict[str, Any] = {"model": "demo/chat", **order}
        if tab.closed is None:
            return job(hex_of(tab.job_id), "in_progress" if claimed else "queued", **more)
        more |= {"state": 2, "ended_because": 1, "completion_tok": str(tab.completion_tok), "provider_id": "7"}
        return job(hex_of(tab.job_id), "completed", result_cid=tab.job_id.hex()[:18], **more)

    def _messages(self, asked: Asked) -> Answer:
        assert asked.headers["authorization"] == "Bearer token"
        sent = [(each["job_id"], base64.b64decode(each["body"])) for each in asked.body["messages"]]
        self.posts.append(sent)
        for job_id, frame in sent:
            next(tab for tab in self.tabs if hex_of(tab.job_id) == job_id).receive(frame)
        return Answer(200, {"refused": []})


def texts(chunks: Sequence[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)


async def ask(tab: Tab, text: str) -> TabReply:
    return await (await tab.request(question(text))).answer()
