"""The plaintexts: what an owner seals for a provider, and what a provider seals back.

    envelope     {"custom_id"?, "input", "model", "owner", "result_key", "v": 1}
    result body  {"job_id", "output", "usage", "v": 1}

Both are canonical JSON (`common.strict_json`) and both readers take the canonical spelling only, so a value
has one plaintext: what was paid for can be counted in bytes, and nothing is said twice in two ways.
"""

from typing import Final, Self

import attrs

from common.box import PublicKey
from common.canonical_json import canonical
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.strict_json import parse

LONGEST_CUSTOM_ID: Final = 64  # characters, that is code points
VERSION: Final = 1


@attrs.frozen
class Envelope:
    """A job's payload: the model's own `input` object, and the `result_key` that the result is sealed to."""

    owner: bytes
    model: str
    input: dict[str, object]
    result_key: PublicKey
    custom_id: str | None = None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Refuses all but an envelope's canonical spelling, as `malformed_envelope`."""
        try:
            fields = _fields(raw, {"owner", "model", "input", "result_key"}, {"custom_id"})
            return cls(
                owner=_lower_hex(fields["owner"], 20, "owner"),
                model=_text(fields["model"], "model"),
                input=_object(fields["input"], "input"),
                result_key=PublicKey(_lower_hex(fields["result_key"], 32, "result_key")),
                custom_id=_custom_id(fields["custom_id"]) if "custom_id" in fields else None,
            )
        except Refused as refusal:
            raise Refused(refusal.message, refusal.param, "malformed_envelope") from None

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "v": VERSION,
            "owner": hex_of(_exactly(self.owner, 20, "owner")),
            "model": _text(self.model, "model"),
            "input": _object(self.input, "input"),
            "result_key": hex_of(self.result_key.raw),
        }
        if self.custom_id is not None:
            fields["custom_id"] = _custom_id(self.custom_id)
        return canonical(fields)


@attrs.frozen
class ResultBody:
    """A job's result. `output` is what the model gave, any JSON value; `usage` is an object of its counts."""

    job_id: bytes
    output: object
    usage: dict[str, object]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Refuses all but a result body's canonical spelling, as `malformed_result`."""
        try:
            fields = _fields(raw, {"job_id", "output", "usage"}, set())
            return cls(
                job_id=_lower_hex(fields["job_id"], 32, "job_id"),
                output=fields["output"],
                usage=_object(fields["usage"], "usage"),
            )
        except Refused as refusal:
            raise Refused(refusal.message, refusal.param, "malformed_result") from None

    def encode(self) -> bytes:
        return canonical(
            {
                "v": VERSION,
                "job_id": hex_of(_exactly(self.job_id, 32, "job_id")),
                "output": self.output,
                "usage": _object(self.usage, "usage"),
            }
        )


def _fields(raw: bytes, required: set[str], optional: set[str]) -> dict[str, object]:
    value = parse(raw)
    fields = _object(value, None)
    version = fields.get("v")
    if type(version) is not int or version != VERSION:
        raise Refused(f"v must be {VERSION}", "v")
    required = required | {"v"}
    for name in sorted(required - fields.keys()):
        raise Refused(f"{name} is missing", name)
    for name in sorted(fields.keys() - required - optional):
        raise Refused(f"{name!r} is not a field of this format", name)
    if canonical(value) != raw:
        raise Refused("the JSON is not in its canonical spelling")
    return fields


def _object(value: object, param: str | None) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refused(f"{param or 'the plaintext'} must be a JSON object", param)
    return value


def _text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise Refused(f"{param} must be a string that is not empty", param)
    return value


def _custom_id(value: object) -> str:
    text = _text(value, "custom_id")
    if len(text) > LONGEST_CUSTOM_ID:
        raise Refused(f"custom_id must have 1 to {LONGEST_CUSTOM_ID} characters", "custom_id")
    return text


def _lower_hex(value: object, length: int, param: str) -> bytes:
    raw = read_hex(value, length, param)
    if hex_of(raw) != value:
        raise Refused(f"{param} must be in lower case", param)
    return raw


def _exactly(raw: bytes, length: int, param: str) -> bytes:
    if len(raw) != length:
        raise Refused(f"{param} must have {length} bytes", param)
    return raw
