"""The owner's side of a tab: requests, vouchers, checks of answers, and the hash chain of exchanges. No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from common.bundle import convert_to_output_units
from common.canonical_json import canonical
from common.domains import Domains
from common.json_object import ObjectReader
from common.messages.tabs import TabVoucher
from common.pricing.units import units_of
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from common.tab.channel import MAX_MESSAGE_BYTES
from common.tab.messages import (
    MAX_OPEN_REQUESTS,
    MAX_STREAM_BYTES,
    SignedVoucher,
    TabAck,
    TabAnswer,
    TabDelta,
    TabFailure,
    TabRequest,
    Welcome,
    chunk_size,
)
from common.tab.terms import Exchange, TabTotals, first_chain_hash, input_digest
from common.tab.transcript import TabOrder, Transcript

MAX_INPUT_BYTES: Final = MAX_MESSAGE_BYTES - 4096  # leaves room for the voucher
MAX_OPEN_STREAM_BYTES: Final = 128 << 20  # limit for the chunks of all unfinished answers of a tab
_RESERVED_ID_COUNT: Final = 64  # one write reserves this many ids, so that few requests wait for the disk
_OUTPUT_FIELDS: Final = {"chat": "choices", "response": "output"}
_STATE_READER: Final = ObjectReader("the state of a tab", "malformed_state")


class TabFull(Exception):
    """Error for a request or answer that exceeds a limit of the tab: its cap, open requests or chunks."""


class WrongAnswer(Exception):
    """Error for an answer that breaks the protocol. The client does not acknowledge this answer."""


def first_choice_text(chunk: Mapping[str, Any]) -> str:
    """Return the text that a chunk adds to the first choice or output of an answer.

    >>> first_choice_text({"choices": [{"index": 0, "delta": {"content": "Because"}}]})
    'Because'
    """
    return "".join(text for key, text in _streamed_texts(chunk) if key[1] in (0, None))


def _streamed_texts(chunk: Mapping[str, Any]) -> Iterator[tuple[tuple[object, ...], str]]:
    kind, delta = chunk.get("type"), chunk.get("delta")
    if kind == "response.output_text.delta" and isinstance(delta, str):
        yield ("response", chunk.get("output_index", 0), chunk.get("content_index", 0)), delta  # some servers omit them
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and isinstance(delta.get("content"), str):
            yield ("chat", choice.get("index", 0)), delta["content"]


@attrs.define
class StreamedText:
    """Streamed texts of one answer, from the events of a chat completion or a response."""

    _texts: dict[tuple[object, ...], list[str]] = attrs.field(factory=dict)

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add the texts of a chunk. Raises WrongAnswer for an index that is not a number."""
        for key, text in _streamed_texts(chunk):
            if not all(part is None or isinstance(part, int) for part in key[1:]):
                raise WrongAnswer("an index in a chunk must be a number")
            self._texts.setdefault(key, []).append(text)

    def unstreamed_chunks(self, output: object) -> list[dict[str, object]]:
        """Return chunks with the text that is in the whole answer but was not streamed.

        If a stream becomes too long for a tab, the provider stops the stream and then sends the whole answer. Raises
        WrongAnswer if a text of the answer does not begin with its streamed part. Only chat completions and responses
        are compared.
        """
        chunks: list[dict[str, object]] = []
        for key, parts in self._texts.items():
            if not isinstance(output, dict) or not isinstance(output.get(_OUTPUT_FIELDS[str(key[0])]), list):
                continue
            streamed, text = "".join(parts), _text_at(output, key)
            if not isinstance(text, str):
                text = ""
            if not text.startswith(streamed):
                raise WrongAnswer("the answer differs from the streamed text")
            if len(text) > len(streamed):
                chunks.append(_text_chunk(key, text[len(streamed) :]))
        return chunks


@attrs.define(eq=False)
class OpenRequest:
    """Request without an acknowledged answer. `chunks` has the received text, which `finish` completes."""

    id: int
    input: dict[str, object] = attrs.field(repr=False)
    digest: bytes
    units_in: int
    max_units_out: int
    is_sent: bool = False  # sent in the current channel
    is_held: bool = False  # not sent until released
    chunks: list[dict[str, object]] = attrs.field(factory=list, repr=False)
    exchange: Exchange | None = None  # set once the whole answer is checked
    stream_bytes: int = 0
    _text: StreamedText = attrs.field(factory=StreamedText, repr=False)

    def extend(self, delta: TabDelta) -> None:
        """Add the new chunks of a `TabDelta` message. Raises WrongAnswer for a gap or too many bytes."""
        if delta.first_chunk_index > len(self.chunks):
            raise WrongAnswer(f"request {self.id}: the provider skipped chunks")
        for chunk in delta.chunks[len(self.chunks) - delta.first_chunk_index :]:
            self.stream_bytes += chunk_size(chunk)
            if self.stream_bytes > MAX_STREAM_BYTES:
                raise WrongAnswer(f"request {self.id}: the chunks have more than {MAX_STREAM_BYTES} bytes")
            self._text.add(chunk)
            self.chunks.append(chunk)

    def finish(self, answer: TabAnswer) -> None:
        """Add the text that was not streamed, and set the exchange to acknowledge.

        Raises WrongAnswer if the units do not fit the request, or if the answer differs from the streamed text.
        """
        if answer.units_in != self.units_in:
            raise WrongAnswer(
                f"request {self.id}: the answer counts {answer.units_in} units of input instead of {self.units_in}"
            )
        if answer.units_out > self.max_units_out:
            limit = f"at most {self.max_units_out} are allowed"
            raise WrongAnswer(f"request {self.id}: the answer counts {answer.units_out} units of output, but {limit}")
        try:
            self.chunks += self._text.unstreamed_chunks(answer.output)
        except WrongAnswer as wrong:
            raise WrongAnswer(f"request {self.id}: {wrong}") from None
        self.exchange = Exchange(self.id, self.digest, answer.output, answer.usage, answer.units_in, answer.units_out)


def _text_at(output: object, key: tuple[object, ...]) -> object:
    try:
        found: Any = output
        if key[0] == "response":
            return found["output"][key[1]]["content"][key[2]]["text"]
        return next(choice for choice in found["choices"] if choice.get("index", 0) == key[1])["message"]["content"]
    except (LookupError, TypeError, AttributeError, StopIteration):
        return None


def _text_chunk(key: tuple[object, ...], text: str) -> dict[str, object]:
    """Return a chunk that adds a text, as the server of the model would send it."""
    if key[0] == "response":
        return {
            "type": "response.output_text.delta",
            "output_index": key[1],
            "content_index": key[2],
            "delta": text,
        }
    return {"choices": [{"index": key[1], "delta": {"content": text}}]}


@attrs.define(eq=False)
class OwnerTab:
    """Vouchers and requests of one tab.

    `voucher_number`, `totals`, `chain_hash` and `recent_ids` are stored before a voucher is sent. `chain_hash` is the
    last hash of the chain of exchanges. `recent_ids` are the last acknowledged ids, which are acknowledged again if the
    provider missed the message. All requests have ids below `reserved_id`. `voucher_wallet` signs the vouchers.
    """

    job_id: bytes
    cap: int
    rate_in: int
    rate_out: int
    voucher_wallet: Wallet
    domains: Domains = attrs.field(repr=False)
    voucher_number: int = 0
    totals: TabTotals = TabTotals()
    chain_hash: bytes = b""
    recent_ids: list[int] = attrs.field(factory=list)
    next_id: int = 1
    reserved_id: int = 1
    open_requests: dict[int, OpenRequest] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.chain_hash = self.chain_hash or first_chain_hash(self.job_id)

    @property
    def acknowledged(self) -> int:
        return self.totals.charged_units(self.rate_in, self.rate_out)

    def add_request(self, model_input: dict[str, object], *, held: bool = False) -> OpenRequest:
        """Add a request. Raises TabFull, and Refused for an input that is too large or malformed."""
        units = units_of("text", model_input)
        if not self.fits(units.units_in, units.units_out):
            raise TabFull("the request does not fit into the remaining cap of this tab: open another tab")
        if len(canonical(model_input)) > MAX_INPUT_BYTES:
            message = f"a request in a tab must have at most {MAX_INPUT_BYTES} bytes: order it as a job"
            raise Refused(message, "input", "message_too_large")
        request = OpenRequest(
            self.next_id, model_input, input_digest(model_input), units.units_in, units.units_out, is_held=held
        )
        self.open_requests[request.id] = request
        self.next_id += 1
        return request

    def fits(self, units_in: int, units_out: int) -> bool:
        return self.has_free_slot and self.allowance(units_in, units_out) <= self.cap

    @property
    def has_free_slot(self) -> bool:
        return len(self.open_requests) < MAX_OPEN_REQUESTS

    @property
    def has_work(self) -> bool:
        """Return True if a request is unsent or an answer is not acknowledged."""
        return bool(self.unsent()) or any(request.exchange is not None for request in self.open_requests.values())

    def unsent(self) -> list[OpenRequest]:
        return [request for request in self.open_requests.values() if not (request.is_sent or request.is_held)]

    def allowance(self, units_in: int = 0, units_out: int = 0) -> int:
        """Return the maximum charge of all acknowledged and open requests, plus one more request of this size."""
        for request in self.open_requests.values():
            done = request.exchange
            units_in += request.units_in
            units_out += request.max_units_out if done is None else done.units_out
        units_in, units_out = self.totals.units_in + units_in, self.totals.units_out + units_out
        return convert_to_output_units(units_in, units_out, self.rate_in, self.rate_out)

    def exchange_units(self, units_in: int, units_out: int) -> int:
        """Return the units that an exchange of this size adds to the tab's charge, rounded up."""
        return convert_to_output_units(units_in, units_out, self.rate_in, self.rate_out)

    def reserve_ids(self) -> bool:
        """Reserve ids for the open requests. Return True if the caller must store the state before sending them."""
        if self.next_id <= self.reserved_id:
            return False
        self.reserved_id = self.next_id + _RESERVED_ID_COUNT
        return True

    def request_message(self, request: OpenRequest) -> TabRequest:
        """Return the message that sends a request, with a new voucher. Mark the request as sent."""
        request.is_sent = True
        return TabRequest(request.id, request.input, self._voucher())

    def receive_message(self, message: TabDelta | TabAnswer | TabFailure) -> OpenRequest | None:
        """Add a message to the open request that it answers, and return the request.

        Raises WrongAnswer, and TabFull if the chunks of all open answers use too much memory.
        Returns None for a repeated message of a finished request.
        """
        request = self.open_requests.get(message.id)
        if request is None or request.exchange is not None:
            if message.id >= self.next_id:
                raise WrongAnswer(f"the provider answered request {message.id}, which was not sent")
            return None
        match message:
            case TabDelta():
                request.extend(message)
                if sum(each.stream_bytes for each in self.open_requests.values()) > MAX_OPEN_STREAM_BYTES:
                    raise TabFull(f"the unfinished answers of this tab have more than {MAX_OPEN_STREAM_BYTES} bytes")
            case TabAnswer():
                request.finish(message)
            case TabFailure():
                del self.open_requests[request.id]
        return request

    def remove_request(self, request_id: int | None) -> None:
        """Remove a request, so that its answer is never acknowledged."""
        if request_id is not None:
            self.open_requests.pop(request_id, None)

    def acknowledge(self) -> tuple[int, ...]:
        """Add all checked answers to the chain of exchanges. Return the ids to acknowledge once the state is stored."""
        done = [request for request in self.open_requests.values() if request.exchange is not None]
        for request in done:
            exchange = request.exchange
            if exchange is None:
                raise AssertionError("an open request without an exchange cannot be acknowledged")
            self.totals = self.totals.plus(exchange.units_in, exchange.units_out)
            self.chain_hash = exchange.chain_hash(self.chain_hash)
            del self.open_requests[request.id]
        ids = tuple(request.id for request in done)
        self.recent_ids = [*self.recent_ids, *ids][-MAX_OPEN_REQUESTS:]
        return ids

    def ack_message(self, ids: tuple[int, ...]) -> TabAck:
        return TabAck(ids, self._voucher())

    def resume(self, welcome: Welcome) -> tuple[int, ...]:
        """Compare this tab with the provider's state after a handshake. Return the ids to acknowledge again.

        Raises WrongAnswer if the two states contradict each other. Then the caller must close the tab.
        """
        self.voucher_number = max(self.voucher_number, welcome.voucher_number)
        for request in self.open_requests.values():
            request.is_sent = False
        missing = tuple(id for id in self.recent_ids if id in welcome.answered_ids)
        if set(welcome.answered_ids) - set(missing) - self.open_requests.keys():
            raise WrongAnswer("the provider has answers for an earlier process, which this process cannot check")
        if welcome.acknowledged > self.acknowledged or (not missing and welcome.acknowledged < self.acknowledged):
            message = f"the provider counts {welcome.acknowledged} acknowledged units instead of {self.acknowledged}"
            raise WrongAnswer(message)
        return missing

    def _voucher(self) -> SignedVoucher:
        self.voucher_number += 1
        message = TabVoucher(self.job_id, self.voucher_number, self.allowance(), self.acknowledged, self.chain_hash)
        signature = self.voucher_wallet.sign(self.domains.tabs.digest(message))
        return SignedVoucher(message.number, message.allowance, message.acknowledged, message.chain, signature)

    def state(self) -> dict[str, object]:
        """Return the state to store, for `load`."""
        return {
            "number": self.voucher_number,
            "units_in": self.totals.units_in,
            "units_out": self.totals.units_out,
            "chain": hex_of(self.chain_hash),
            "recent": list(self.recent_ids),
            "reserved_id": self.reserved_id,
        }

    def load(self, state: object) -> None:
        """Restore the state that `state` returned. Raises Refused (`malformed_state`)."""
        names = {"number", "units_in", "units_out", "chain", "recent", "reserved_id"}
        fields = _STATE_READER.read_fields(state, None, names)
        self.voucher_number = _STATE_READER.read_count(fields["number"], "number")
        self.totals = TabTotals(
            _STATE_READER.read_count(fields["units_in"], "units_in"),
            _STATE_READER.read_count(fields["units_out"], "units_out"),
        )
        self.chain_hash = _STATE_READER.read_hex(fields["chain"], 32, "chain")
        recent = _STATE_READER.read_list(fields["recent"], "recent", 0, MAX_OPEN_REQUESTS)
        self.recent_ids = [_STATE_READER.read_count(each, "recent") for each in recent]
        self.next_id = self.reserved_id = max(1, _STATE_READER.read_count(fields["reserved_id"], "reserved_id"))


@attrs.frozen(slots=True)
class TabCheckResult:
    """Result of the check of a settled tab. `fault` is None if the transcript proves the charge."""

    transcript: Transcript | None
    fault: str | None
    overcharged: bool


def check_tab_result(
    output: object, order: TabOrder, acknowledged: int, voucher_key: bytes, domains: Domains
) -> TabCheckResult:
    """Check the result of a tab against its order and the units that the owner acknowledged."""
    overcharged = order.completion_tok > acknowledged
    excess = f"{order.completion_tok} units were charged, but {acknowledged} were acknowledged"
    try:
        transcript = Transcript.read(output)
    except Refused as refusal:
        return TabCheckResult(None, excess if overcharged else refusal.message, overcharged)
    fault = transcript.find_fault(order, domains)
    if fault is None and transcript.delegation.voucher_key != voucher_key:
        fault = "the transcript has another voucher key than the tab"
    return TabCheckResult(transcript, excess if overcharged else fault, overcharged)
