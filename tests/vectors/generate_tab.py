"""Make the vectors of tabs: `python -m tests.vectors.generate_tab`.

Uses nothing from `common`. eth_account signs, and the handshake below follows Noise's own description step by step.
"""

import hashlib
import hmac
import json
from typing import Any, Final

from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak
from nacl import bindings

from tests.vectors.signing.fixed import CHAIN_ID, SIGNER, at, hexed
from tests.vectors.vector_file import FOLDER, Case, text_of

_JOB: Final = at("tab")
_REGISTRY: Final = at("job registry")[:20]
_KEY: Final = Account.from_key(at("tab key"))
_SECRETS: Final = {name: at(name) for name in ("owner_secret", "owner_ephemeral", "box_secret", "box_ephemeral")}
_CHANNEL_ID: Final = at("channel id")[:8]
_UNTIL: Final = 1_800_003_600
_DOMAIN: Final = {
    "name": "SVC Tabs", "version": "1", "chainId": CHAIN_ID, "verifyingContract": hexed(_REGISTRY),
}  # fmt: skip
_PROVIDER: Final = 3


# --- signed structs ---------------------------------------------------------------------------------------------


def _typed(primary: str, listing: str, message: dict[str, Any]) -> Any:
    fields = [dict(zip(("type", "name"), field.split(" "), strict=True)) for field in listing.split(",")]
    return encode_typed_data(domain_data=_DOMAIN, message_types={primary: fields}, message_data=message)


_DELEGATED: Final = _typed(
    "TabKey",
    "address key,uint32 providerId,uint64 expiresAt",
    {"key": _KEY.address, "providerId": _PROVIDER, "expiresAt": _UNTIL},
)
_DELEGATION: Final = {
    "voucher_key": _KEY.address.lower(),
    "delegated_until": _UNTIL,
    "delegation": hexed(bytes(SIGNER.sign_message(_DELEGATED).signature)),
}


def _digest(typed: Any) -> str:
    return hexed(keccak(b"\x19\x01" + typed.header + typed.body))


def _voucher(number: int, allowance: int, acknowledged: int, chain: bytes) -> tuple[dict[str, Any], str]:
    """Return a signed voucher and its digest."""
    typed = _typed(
        "TabVoucher",
        "bytes32 jobId,uint32 number,uint32 allowance,uint32 acknowledged,bytes32 chain",
        {
            "jobId": _JOB,
            "number": number,
            "allowance": allowance,
            "acknowledged": acknowledged,
            "chain": chain,
        },
    )
    signed = {
        "number": number, "allowance": allowance, "acknowledged": acknowledged, "chain": hexed(chain),
        "signature": hexed(bytes(_KEY.sign_message(typed).signature)),
    }  # fmt: skip
    return signed, _digest(typed)


# --- exchanges --------------------------------------------------------------------------------------------------


def _canonical(value: Any) -> bytes:
    """Return RFC 8785 JSON of values without floats and without characters outside of ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha256(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def _exchange(number: int, text: str, units_in: int, units_out: int) -> dict[str, Any]:
    asked = {"input": f"question {number}"}
    return {
        "id": number, "input": hexed(_sha256(_canonical(asked))), "output": {"text": text},
        "usage": {"completion_tokens": units_out}, "units_in": units_in, "units_out": units_out,
    }  # fmt: skip


def _chain(exchanges: list[dict[str, Any]], job_id: bytes = _JOB) -> bytes:
    chain = _sha256(b"svc-tab-chain-v1" + job_id)
    for each in exchanges:
        answered = _sha256(_canonical({"output": each["output"], "usage": each["usage"]}))
        counts = each["units_in"].to_bytes(4, "big") + each["units_out"].to_bytes(4, "big")
        chain = _sha256(chain + each["id"].to_bytes(4, "big") + bytes.fromhex(each["input"][2:]) + answered + counts)
    return chain


# Rates 1 and 2: 17 input units are 9 units of output, and 7 are delivered.
_EXCHANGES: Final = [_exchange(2, "second", 10, 3), _exchange(1, "first", 7, 4)]
_SIGNED, _VOUCHER_DIGEST = _voucher(4, 30, 16, _chain(_EXCHANGES))
_OUTPUT: Final = {"svc_tab": 1, "closed": "idle", "exchanges": _EXCHANGES, "voucher": _SIGNED, **_DELEGATION}
_EMPTY: Final = _OUTPUT | {"closed": "unused", "exchanges": [], "voucher": None}


def _transcript(name: str, output: Any, proves: str | None, completion_tok: int = 16, **changed: Any) -> Case:
    case: Case = {
        "name": name, "kind": "transcript", "output": output, "chain_id": str(CHAIN_ID),
        "job_registry": hexed(_REGISTRY), "job_id": hexed(_JOB), "owner": SIGNER.address.lower(),
        "provider_id": str(_PROVIDER), "rate_in": "1", "rate_out": "2", "completion_tok": completion_tok, **changed,
    }  # fmt: skip
    if proves is None:
        return case | {"refused": "malformed_transcript"}
    chain = _chain(output["exchanges"], bytes.fromhex(case["job_id"][2:]))
    case |= {"chain": hexed(chain), "proves": proves}
    if output is _OUTPUT and not changed:
        case |= {"voucher_digest": _VOUCHER_DIGEST, "delegation_digest": _digest(_DELEGATED)}
    return case


def _transcripts() -> list[Case]:
    other, _ = _voucher(5, 30, 17, _chain(_EXCHANGES))
    changed = [_EXCHANGES[0] | {"output": {"text": "changed"}}, _EXCHANGES[1]]
    return [
        _transcript("two exchanges, in the order of their acknowledgement", _OUTPUT, "charge"),
        _transcript("less was settled than acknowledged", _OUTPUT, "charge", 15),
        _transcript("more was settled than acknowledged", _OUTPUT, "overcharge", 17),
        _transcript("nothing was acknowledged", _EMPTY, "charge", 0),
        _transcript("units without a voucher", _EMPTY, "overcharge", 1),
        _transcript("exchanges without a voucher", _OUTPUT | {"voucher": None}, "nothing", 0),
        _transcript("a changed answer", _OUTPUT | {"exchanges": changed}, "nothing"),
        _transcript("exchanges in another order", _OUTPUT | {"exchanges": _EXCHANGES[::-1]}, "nothing"),
        _transcript("a voucher for other units", _OUTPUT | {"voucher": other}, "nothing"),
        _transcript("a voucher that another key signed", _OUTPUT | {"voucher": _SIGNED | {"number": 5}}, "nothing"),
        _transcript("a delegation by another wallet", _OUTPUT, "nothing", owner=hexed(at("bystander")[:20])),
        _transcript("a delegation for another provider", _OUTPUT, "nothing", provider_id="4"),
        _transcript("another job", _OUTPUT, "nothing", job_id=hexed(at("another tab"))),
        *(
            _transcript(name, output, None)
            for name, output in (
                ("another version of the transcript", _OUTPUT | {"svc_tab": 2}),
                ("a member that no transcript has", _OUTPUT | {"model": "m"}),
                ("an exchange without units", _OUTPUT | {"exchanges": [{"id": 1}]}),
                ("a delegation of 64 bytes", _OUTPUT | {"delegation": _DELEGATION["delegation"][:-2]}),  # type: ignore[index]
                ("a transcript that is a list", [_OUTPUT]),
            )
        ),
    ]


# --- payload, evidence, messages --------------------------------------------------------------------------------


def _payloads() -> list[Case]:
    owner = hexed(bindings.crypto_scalarmult_base(_SECRETS["owner_secret"]))
    terms = {"svc_tab": 1, "channel_key": owner, **_DELEGATION}
    refused = (
        ("another version of the payload", terms | {"svc_tab": 2}),
        ("a version as true", terms | {"svc_tab": True}),
        ("a payload without a delegation", {name: terms[name] for name in terms if name != "delegation"}),
        ("a member that no payload has", terms | {"messages": []}),
        ("a channel key of low order", terms | {"channel_key": "0x" + "00" * 32}),
        ("an end of the delegation as a string", terms | {"delegated_until": str(_UNTIL)}),
    )
    return [
        {"name": "the payload of a tab", "kind": "payload", "input": terms, "read": owner},
        *({"name": name, "kind": "payload", "input": given, "refused": "malformed_tab"} for name, given in refused),
    ]


def _evidence() -> list[Case]:
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("an announcement beside others", {"svc_tab": {"v": 1}, "svc_bundle": {"v": 1, "items": 500}}, True),
        ("an announcement with a later member", {"svc_tab": {"v": 1, "more": 1}}, True),
        ("another version of the announcement", {"svc_tab": {"v": 2}}, False),
        ("an announcement that is no object", {"svc_tab": 1}, False),
        ("no evidence", None, False),
    )
    return [{"name": name, "kind": "evidence", "evidence": given, "announced": is_} for name, given, is_ in rows]


_DIRECT: Final = {"url": "https://192.0.2.7:8443", "certificate": "-----BEGIN CERTIFICATE-----", "token": "t0"}
_WELCOME: Final = {"t": "welcome", "parallel": 4, "seconds": 3000, "number": 4, "acknowledged": 16, "answered": [3]}
_ANSWER: Final = {"t": "answer", "id": 1, "output": {"text": "hi"}, "usage": {}, "units_in": 7, "units_out": 4}
_DELTA: Final = {"t": "delta", "id": 1, "first": 0, "chunks": [{"text": "h"}, {"text": "i"}]}
_REQUEST: Final = {"t": "request", "id": 1, "input": {"input": "hi"}, "voucher": _SIGNED}
_ACK: Final = {"t": "ack", "ids": [2, 1], "voucher": _SIGNED}


def _messages() -> list[Case]:
    accepted = (
        ("a request", "owner", _REQUEST),
        ("an ack of two answers", "owner", _ACK),
        ("a close", "owner", {"t": "close"}),
        ("a welcome", "provider", _WELCOME),
        ("a welcome with a direct endpoint", "provider", _WELCOME | {"direct": _DIRECT}),
        ("a delta", "provider", _DELTA),
        ("an answer", "provider", _ANSWER),
        ("a failure", "provider", {"t": "failed", "id": 1, "code": "backend_error"}),
        ("a closing", "provider", {"t": "closing", "reason": "idle"}),
    )
    refused = (
        ("a request of the provider", "provider", _REQUEST),
        ("an answer of the owner", "owner", _ANSWER),
        ("a request with the id 0", "owner", _REQUEST | {"id": 0}),
        ("a request without a voucher", "owner", {name: _REQUEST[name] for name in ("t", "id", "input")}),
        ("an input that is a text", "owner", _REQUEST | {"input": "hi"}),
        ("an ack of nothing", "owner", _ACK | {"ids": []}),
        ("an ack of 65 answers", "owner", _ACK | {"ids": list(range(1, 66))}),
        ("a voucher with a member more", "owner", _ACK | {"voucher": _SIGNED | {"job_id": hexed(_JOB)}}),
        ("a close with a reason", "owner", {"t": "close", "reason": "done"}),
        ("a delta without chunks", "provider", _DELTA | {"chunks": []}),
        ("a delta of 257 chunks", "provider", _DELTA | {"chunks": [{}] * 257}),
        ("an answer with units below zero", "provider", _ANSWER | {"units_out": -1}),
        ("a reason of 65 characters", "provider", {"t": "closing", "reason": "x" * 65}),
        ("a kind that no side sends", "provider", {"t": "hello"}),
    )
    spelled = (("a key twice", "owner", '{"t":"close","t":"close"}'), ("a text that is no object", "owner", "[]"))

    def case(name: str, sender: str, text: str) -> Case:
        return {"name": name, "kind": "message", "sender": sender, "text": text}

    return [
        *(
            case(name, sender, _canonical(message).decode()) | {"read": message["t"]}
            for name, sender, message in accepted
        ),
        *(
            case(name, sender, _canonical(message).decode()) | {"refused": "malformed_message"}
            for name, sender, message in refused
        ),
        *(case(*row) | {"refused": "malformed_message"} for row in spelled),
    ]


# --- channel ----------------------------------------------------------------------------------------------------


def _hkdf(key: bytes, secret: bytes) -> tuple[bytes, bytes]:
    temporary = hmac.digest(key, secret, "sha256")
    first = hmac.digest(temporary, b"\x01", "sha256")
    return first, hmac.digest(temporary, first + b"\x02", "sha256")


def _encrypt(key: bytes, number: int, bound: bytes, plaintext: bytes) -> bytes:
    nonce = bytes(4) + number.to_bytes(8, "little")
    return bindings.crypto_aead_chacha20poly1305_ietf_encrypt(plaintext, bound, nonce, key)


def _channel(payload: bytes, messages: list[tuple[str, bytes]]) -> list[bytes]:
    """Return all frames: the hello, the welcome, and the frames of the messages."""
    s_owner, e_owner, _, e_box = _SECRETS.values()  # the owner's side needs the public box key alone
    public = {name: bindings.crypto_scalarmult_base(secret) for name, secret in _SECRETS.items()}

    def shared(mine: bytes, theirs: str) -> bytes:
        return bindings.crypto_scalarmult(mine, public[theirs])

    chaining = h = b"Noise_KK_25519_ChaChaPoly_SHA256"
    prologue = b"svc-tab-1" + CHAIN_ID.to_bytes(32, "big") + _REGISTRY + _JOB + _CHANNEL_ID
    for known in (prologue, public["owner_secret"], public["box_secret"]):
        h = _sha256(h + known)
    frames = []
    for kind, ephemeral, secrets, plaintext in (
        (1, "owner_ephemeral", (shared(e_owner, "box_secret"), shared(s_owner, "box_secret")), b""),
        (2, "box_ephemeral", (shared(e_box, "owner_ephemeral"), shared(e_box, "owner_secret")), payload),
    ):
        h = _sha256(h + public[ephemeral])
        for secret in secrets:
            chaining, key = _hkdf(chaining, secret)
        sealed = _encrypt(key, 0, h, plaintext)
        h = _sha256(h + sealed)
        frames.append(bytes((kind,)) + _CHANNEL_ID + public[ephemeral] + sealed)
    keys = dict(zip(("owner", "provider"), _hkdf(chaining, b""), strict=True))
    numbers = {"owner": 0, "provider": 0}
    for sender, message in messages:
        parts = [message[start : start + 65_518] for start in range(0, max(1, len(message)), 65_518)]
        for part in parts:
            follows = b"\x00" if part is parts[-1] else b"\x01"
            sealed = _encrypt(keys[sender], numbers[sender], b"", follows + part)
            numbers[sender] += 1
            frames.append(b"\x03" + _CHANNEL_ID + sealed)
    return frames


_PLACED: Final = {
    "chain_id": str(CHAIN_ID), "job_registry": hexed(_REGISTRY), "job_id": hexed(_JOB),
    "channel_id": hexed(_CHANNEL_ID), **{name: hexed(secret) for name, secret in _SECRETS.items()},
}  # fmt: skip


def _channels() -> list[Case]:
    welcome = _canonical(_WELCOME)
    messages = [("owner", b"one"), ("provider", b"two"), ("provider", b""), ("owner", b"three")]
    sent = [{"from": sender, "message": hexed(message)} for sender, message in messages]
    hello, welcomed, first, second = _channel(welcome, [("owner", b"one"), ("owner", b"two")])

    def flipped(frame: bytes, place: int) -> bytes:
        return frame[:place] + bytes((frame[place] ^ 1,)) + frame[place + 1 :]

    refused = (
        ("a hello with a changed key", [flipped(hello, 9), welcomed]),
        ("a hello of another channel", [flipped(hello, 1), welcomed]),
        ("a hello cut short", [hello[:-1], welcomed]),
        ("a welcome with a changed payload", [hello, flipped(welcomed, 50)]),
        ("a welcome of another channel", [hello, flipped(welcomed, 8)]),
        ("a changed frame", [hello, welcomed, flipped(first, 20)]),
        ("a frame that was dropped", [hello, welcomed, second]),
        ("a frame twice", [hello, welcomed, first, first]),
        ("frames in another order", [hello, welcomed, second, first]),
        ("a frame of a kind that does not exist", [hello, welcomed, b"\x05" + first[1:]]),
    )

    def received(name: str, frames: list[bytes]) -> Case:
        return {"name": name, "kind": "received", **_PLACED, "given": [hexed(frame) for frame in frames]}

    return [
        {
            "name": "a channel with messages of both sides",
            "kind": "channel",
            **_PLACED,
            "payload": hexed(welcome),
            "sent": sent,
            "frames": [hexed(frame) for frame in _channel(welcome, messages)],
        },
        received("two frames of the owner", [hello, welcomed, first, second])
        | {"opened": [hexed(welcome), hexed(b"one"), hexed(b"two")]},
        *(received(name, frames) | {"refused": "bad_frame"} for name, frames in refused),
    ]


def cases() -> list[Case]:
    return [*_payloads(), *_evidence(), *_messages(), *_transcripts(), *_channels()]


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {"tab.json": text_of("Tabs: payloads, messages, transcripts and channels.", cases())}


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")
