"""Messages inside the channel of a tab. Each is canonical JSON with its kind in `t`.

    owner → provider    request   {"id", "input", "voucher"}            run this, if the voucher allows it
                        ack       {"ids", "voucher"}                    these answers arrived; charge them
                        close     {}                                    settle now
    provider → owner    welcome   {"parallel", "seconds", "number", "acknowledged", "answered", "direct"?}
                        delta     {"id", "first", "chunks"}             part of an answer that is still running
                        answer    {"id", "output", "usage", "units_in", "units_out"}
                        failed    {"id", "code"}                        not charged
                        closing   {"reason"}                            send the last acks; then the provider settles

The owner numbers its requests from 1. After a new handshake, the owner resends every unanswered request with a new
voucher. The provider runs each id once, answers a finished request from its journal, and resumes the stream of a
running request. `first` is the number of a delta's first chunk, so that the owner can skip chunks it already has.
"""

from collections.abc import Mapping
from typing import Final, Self, TypeAlias

import attrs

from common.canonical_json import canonical
from common.json_object import MAX_CODE_LENGTH, ObjectReader
from common.messages.tabs import TabVoucher
from common.refusal import Refused
from common.scalars import hex_of
from common.strict_json import parse

MAX_OPEN_REQUESTS: Final = 64
MAX_CHUNKS_PER_DELTA: Final = 256
MAX_STREAM_BYTES: Final = 8 << 20  # for all chunks of one answer, measured with `chunk_size`
_CHUNK_OVERHEAD_BYTES: Final = 64  # memory that even an empty chunk uses
_MAX_REQUEST_ID: Final = 2**32 - 1
_MAX_URL_LENGTH: Final = 512
_MAX_TOKEN_LENGTH: Final = 128
_MAX_PEM_LENGTH: Final = 16_384

_READER: Final = ObjectReader("a message of a tab", "malformed_message")


def chunk_size(chunk: Mapping[str, object]) -> int:
    """Return the size of a chunk, which counts towards `MAX_STREAM_BYTES`. Refuse a chunk that canonical JSON cannot
    encode."""
    return _CHUNK_OVERHEAD_BYTES + len(canonical(chunk))


@attrs.frozen(slots=True)
class SignedVoucher:
    """Voucher with the signature of the tab's key."""

    number: int
    allowance: int
    acknowledged: int
    chain: bytes
    signature: bytes

    @classmethod
    def read(cls, value: object, param: str = "voucher") -> Self:
        fields = _READER.read_fields(value, param, {"number", "allowance", "acknowledged", "chain", "signature"})
        return cls(
            _READER.read_count(fields["number"], f"{param}.number"),
            _READER.read_count(fields["allowance"], f"{param}.allowance"),
            _READER.read_count(fields["acknowledged"], f"{param}.acknowledged"),
            _READER.read_hex(fields["chain"], 32, f"{param}.chain"),
            _READER.read_hex(fields["signature"], 65, f"{param}.signature"),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "number": self.number,
            "allowance": self.allowance,
            "acknowledged": self.acknowledged,
            "chain": hex_of(self.chain),
            "signature": hex_of(self.signature),
        }

    def message(self, job_id: bytes) -> TabVoucher:
        return TabVoucher(job_id, self.number, self.allowance, self.acknowledged, self.chain)


@attrs.frozen(slots=True)
class TabRequest:
    """Request of the owner, with a voucher that allows the charge for the answer."""

    id: int
    input: dict[str, object] = attrs.field(repr=False)
    voucher: SignedVoucher


@attrs.frozen(slots=True)
class TabAck:
    """Acknowledgement of answers by the owner, with a voucher that acknowledges the units of these answers."""

    ids: tuple[int, ...]
    voucher: SignedVoucher


@attrs.frozen(slots=True)
class TabClose:
    """Request of the owner to settle the tab now."""


@attrs.frozen(slots=True)
class DirectEndpoint:
    """Endpoint of the provider's own server. The owner must trust only `certificate` (PEM) for the endpoint."""

    url: str
    certificate: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Welcome:
    """State of the tab at the provider, sent in the handshake.

    `max_parallel`: number of unacknowledged answers at which the provider stops starting requests.
    `seconds_left`: time until the tab closes.
    `voucher_number`, `acknowledged`: values of the newest voucher, or 0.
    `answered_ids`: ids of the requests with an unacknowledged answer.
    """

    max_parallel: int
    seconds_left: int
    voucher_number: int
    acknowledged: int
    answered_ids: tuple[int, ...]
    direct: DirectEndpoint | None = None


@attrs.frozen(slots=True)
class TabDelta:
    """Part of an answer that is still running."""

    id: int
    first_chunk_index: int
    chunks: tuple[dict[str, object], ...] = attrs.field(repr=False)


@attrs.frozen(slots=True)
class TabAnswer:
    """Complete answer to a request, with the units to charge."""

    id: int
    output: object = attrs.field(repr=False)
    usage: dict[str, object]
    units_in: int
    units_out: int


@attrs.frozen(slots=True)
class TabFailure:
    """Failure of a request, which is not charged."""

    id: int
    code: str


@attrs.frozen(slots=True)
class TabClosing:
    """Notice from the provider that the tab will be settled after the last acknowledgements."""

    reason: str


OwnerMessage: TypeAlias = TabRequest | TabAck | TabClose
ProviderMessage: TypeAlias = Welcome | TabDelta | TabAnswer | TabFailure | TabClosing


def encode(message: OwnerMessage | ProviderMessage) -> bytes:
    return canonical(_fields_of(message))


def _fields_of(message: OwnerMessage | ProviderMessage) -> dict[str, object]:
    match message:
        case TabRequest():
            return {"t": "request", "id": message.id, "input": message.input, "voucher": message.voucher.as_json()}
        case TabAck():
            return {"t": "ack", "ids": list(message.ids), "voucher": message.voucher.as_json()}
        case TabClose():
            return {"t": "close"}
        case Welcome():
            fields: dict[str, object] = {
                "t": "welcome",
                "parallel": message.max_parallel,
                "seconds": message.seconds_left,
                "number": message.voucher_number,
                "acknowledged": message.acknowledged,
                "answered": list(message.answered_ids),
            }
            direct = message.direct
            return fields if direct is None else fields | {"direct": attrs.asdict(direct)}
        case TabDelta():
            return {"t": "delta", "id": message.id, "first": message.first_chunk_index, "chunks": list(message.chunks)}
        case TabAnswer():
            return {
                "t": "answer",
                "id": message.id,
                "output": message.output,
                "usage": message.usage,
                "units_in": message.units_in,
                "units_out": message.units_out,
            }
        case TabFailure():
            return {"t": "failed", "id": message.id, "code": message.code}
        case TabClosing():
            return {"t": "closing", "reason": message.reason}


def read_owner_message(raw: bytes) -> OwnerMessage:
    """Read a message of the owner. Refuse a malformed message as `malformed_message`."""
    fields = _parse_canonical(raw)
    match fields.get("t"):
        case "request":
            _READER.read_fields(fields, None, {"t", "id", "input", "voucher"})
            return TabRequest(
                _read_id(fields), _READER.read_object(fields["input"], "input"), SignedVoucher.read(fields["voucher"])
            )
        case "ack":
            _READER.read_fields(fields, None, {"t", "ids", "voucher"})
            return TabAck(_read_ids(fields["ids"], "ids"), SignedVoucher.read(fields["voucher"]))
        case "close":
            _READER.read_fields(fields, None, {"t"})
            return TabClose()
    raise _READER.refusal("t must be request, ack or close", "t")


def read_provider_message(raw: bytes) -> ProviderMessage:
    """Read a message of the provider. Refuse a malformed message as `malformed_message`."""
    fields = _parse_canonical(raw)
    match fields.get("t"):
        case "welcome":
            return _read_welcome(fields)
        case "delta":
            _READER.read_fields(fields, None, {"t", "id", "first", "chunks"})
            chunks = _READER.read_list(fields["chunks"], "chunks", 1, MAX_CHUNKS_PER_DELTA)
            read = tuple(_READER.read_object(chunk, f"chunks[{n}]") for n, chunk in enumerate(chunks))
            return TabDelta(_read_id(fields), _READER.read_count(fields["first"], "first"), read)
        case "answer":
            _READER.read_fields(fields, None, {"t", "id", "output", "usage", "units_in", "units_out"})
            return TabAnswer(
                _read_id(fields),
                fields["output"],
                _READER.read_object(fields["usage"], "usage"),
                _READER.read_count(fields["units_in"], "units_in"),
                _READER.read_count(fields["units_out"], "units_out"),
            )
        case "failed":
            _READER.read_fields(fields, None, {"t", "id", "code"})
            return TabFailure(_read_id(fields), _READER.read_text(fields["code"], "code", MAX_CODE_LENGTH))
        case "closing":
            _READER.read_fields(fields, None, {"t", "reason"})
            return TabClosing(_READER.read_text(fields["reason"], "reason", MAX_CODE_LENGTH))
    raise _READER.refusal("t must be welcome, delta, answer, failed or closing", "t")


def _read_welcome(fields: Mapping[str, object]) -> Welcome:
    required = {"t", "parallel", "seconds", "number", "acknowledged", "answered"}
    _READER.read_fields(fields, None, required, {"direct"})
    return Welcome(
        max(1, _READER.read_count(fields["parallel"], "parallel")),
        _READER.read_count(fields["seconds"], "seconds"),
        _READER.read_count(fields["number"], "number"),
        _READER.read_count(fields["acknowledged"], "acknowledged"),
        _read_ids(fields["answered"], "answered", minimum=0),
        _read_direct_endpoint(fields["direct"]) if "direct" in fields else None,
    )


def _read_direct_endpoint(value: object) -> DirectEndpoint:
    fields = _READER.read_fields(value, "direct", {"url", "certificate", "token"})
    return DirectEndpoint(
        _READER.read_text(fields["url"], "direct.url", _MAX_URL_LENGTH),
        _READER.read_text(fields["certificate"], "direct.certificate", _MAX_PEM_LENGTH),
        _READER.read_text(fields["token"], "direct.token", _MAX_TOKEN_LENGTH),
    )


def _parse_canonical(raw: bytes) -> dict[str, object]:
    try:
        value = parse(raw)
        is_canonical = canonical(value) == raw
    except Refused as refusal:
        raise _READER.refusal(refusal.message, refusal.param) from None
    if not is_canonical:
        raise _READER.refusal("a message must be canonical JSON (RFC 8785)", None)
    return _READER.read_object(value, None)


def _read_id(fields: Mapping[str, object]) -> int:
    number = _READER.read_count(fields["id"], "id", _MAX_REQUEST_ID)
    if number == 0:
        raise _READER.refusal("id must be at least 1", "id")
    return number


def _read_ids(value: object, param: str, minimum: int = 1) -> tuple[int, ...]:
    ids = _READER.read_list(value, param, minimum, MAX_OPEN_REQUESTS)
    return tuple(_READER.read_count(each, f"{param}[{n}]", _MAX_REQUEST_ID) for n, each in enumerate(ids))
