"""Plaintext formats: the envelope that an owner seals for a provider, and the result body that a provider seals.

    envelope     {"custom_id"?, "input", "model", "owner", "result_key", "v": 1}
    result body  {"job_id", "output", "usage", "v": 1}

Both are canonical JSON (`common.canonical_json`), and both readers accept canonical JSON only. A value therefore has
exactly one plaintext, so client and provider count the same bytes.
"""

from typing import Final, Self

import attrs

from common.box import PublicKey
from common.canonical_json import canonical
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from common.strict_json import may_have_more_values, parse

MAX_CUSTOM_ID_CODE_POINTS: Final = 64
VERSION: Final = 1
# Maximum number of JSON values in an envelope. Without a maximum, 200 MiB of `[],[],…` would take 5 GiB when parsed.
MAX_ENVELOPE_VALUES: Final = 1 << 21
MAX_RESULT_VALUES: Final = 1 << 23  # a result may contain the embeddings of 2,048 texts


@attrs.frozen
class Envelope:
    """Payload of a job: the `input` for the model, and the `result_key` to which the provider seals the result."""

    owner: bytes
    model: str
    input: dict[str, object]
    result_key: PublicKey
    custom_id: str | None = None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read an envelope. Refuse malformed or non-canonical JSON as `malformed_envelope`."""
        try:
            _require_max_values(raw, MAX_ENVELOPE_VALUES)
            fields = _read_fields(raw, {"owner", "model", "input", "result_key"}, {"custom_id"})
            return cls(
                owner=_read_lower_hex(fields["owner"], 20, "owner"),
                model=_require_text(fields["model"], "model"),
                input=_require_object(fields["input"], "input"),
                result_key=PublicKey(_read_lower_hex(fields["result_key"], 32, "result_key")),
                custom_id=_require_custom_id(fields["custom_id"]) if "custom_id" in fields else None,
            )
        except Refused as refusal:
            raise Refused(refusal.message, refusal.param, "malformed_envelope") from None

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "v": VERSION,
            "owner": hex_of(_require_length(self.owner, 20, "owner")),
            "model": _require_text(self.model, "model"),
            "input": _require_object(self.input, "input"),
            "result_key": hex_of(self.result_key.raw),
        }
        if self.custom_id is not None:
            fields["custom_id"] = _require_custom_id(self.custom_id)
        return _require_max_values(canonical(fields), MAX_ENVELOPE_VALUES)


@attrs.frozen
class ResultBody:
    """Result of a job: the model's `output`, which is any JSON value, and the token counts in `usage`."""

    job_id: bytes
    output: object
    usage: dict[str, object]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read a result body. Refuse malformed or non-canonical JSON as `malformed_result`."""
        try:
            _require_max_values(raw, MAX_RESULT_VALUES)
            fields = _read_fields(raw, {"job_id", "output", "usage"}, set())
            return cls(
                job_id=_read_lower_hex(fields["job_id"], 32, "job_id"),
                output=fields["output"],
                usage=_require_object(fields["usage"], "usage"),
            )
        except Refused as refusal:
            raise Refused(refusal.message, refusal.param, "malformed_result") from None

    def encode(self) -> bytes:
        fields = {
            "v": VERSION,
            "job_id": hex_of(_require_length(self.job_id, 32, "job_id")),
            "output": self.output,
            "usage": _require_object(self.usage, "usage"),
        }
        return _require_max_values(canonical(fields), MAX_RESULT_VALUES)


def _require_max_values(raw: bytes, limit: int) -> bytes:
    if may_have_more_values(raw, limit):
        raise Refused(f"the plaintext must have at most {limit} JSON values")
    return raw


def _read_fields(raw: bytes, required: set[str], optional: set[str]) -> dict[str, object]:
    value = parse(raw)
    fields = _require_object(value, None)
    version = fields.get("v")
    if type(version) is not int or version != VERSION:
        raise Refused(f"v must be {VERSION}", "v")
    required = required | {"v"}
    for name in sorted(required - fields.keys()):
        raise Refused(f"{name} is missing", name)
    for name in sorted(fields.keys() - required - optional):
        raise Refused(f"{name!r} is not a field of this format", name)
    if canonical(value) != raw:
        raise Refused("the plaintext must be canonical JSON (RFC 8785)")
    return fields


def _require_object(value: object, param: str | None) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Refused(f"{param or 'the plaintext'} must be a JSON object", param)
    return value


def _require_text(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise Refused(f"{param} must be a non-empty string", param)
    return value


def _require_custom_id(value: object) -> str:
    text = _require_text(value, "custom_id")
    if len(text) > MAX_CUSTOM_ID_CODE_POINTS:
        raise Refused(f"custom_id must have 1 to {MAX_CUSTOM_ID_CODE_POINTS} characters", "custom_id")
    return text


def _read_lower_hex(value: object, length: int, param: str) -> bytes:
    raw = read_hex(value, length, param)
    if hex_of(raw) != value:
        raise Refused(f"{param} must be in lower case", param)
    return raw


def _require_length(raw: bytes, length: int, param: str) -> bytes:
    if len(raw) != length:
        raise Refused(f"{param} must have {length} bytes", param)
    return raw
