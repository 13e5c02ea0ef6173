"""Validate parsed JSON in payloads, results and messages. All errors of one format have the same code."""

from collections.abc import Collection, Mapping
from typing import Final

import attrs

from common.pricing.model_input import read_count
from common.pricing.units import MAX_UNITS
from common.refusal import Refused
from common.scalars import read_hex

MAX_CODE_LENGTH: Final = 64  # characters of an error code or of the reason for closing a tab


@attrs.frozen(slots=True)
class ObjectReader:
    """Validator of parsed JSON in one format, which error messages call `format_name`."""

    format_name: str
    error_code: str

    def read_fields(
        self, value: object, param: str | None, required: Collection[str], optional: Collection[str] = ()
    ) -> dict[str, object]:
        """Return the object. Refuse a missing required member, and a member that is neither required nor optional."""
        fields = self.read_object(value, param)
        for name in sorted(set(required) - fields.keys()):
            raise self.refusal(f"{member_path(param, name)} is missing", member_path(param, name))
        for name in sorted(fields.keys() - set(required) - set(optional)):
            raise self.refusal(f"{member_path(param, name)} is not a field of this format", member_path(param, name))
        return fields

    def read_object(self, value: object, param: str | None) -> dict[str, object]:
        if not isinstance(value, dict):
            raise self.refusal(f"{param or self.format_name} must be a JSON object", param)
        return value

    def read_list(self, value: object, param: str, minimum: int, maximum: int) -> list[object]:
        if not isinstance(value, list) or not minimum <= len(value) <= maximum:
            raise self.refusal(f"{param} must be a list of {minimum} to {maximum} items", param)
        return value

    def read_text(self, value: object, param: str, max_length: int) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= max_length:
            raise self.refusal(f"{param} must have 1 to {max_length} characters", param)
        return value

    def read_count(self, value: object, param: str, maximum: int = MAX_UNITS) -> int:
        try:
            count = read_count(value, param)
        except Refused as refusal:
            raise self.refusal(refusal.message, param) from None
        if count > maximum:
            raise self.refusal(f"{param} must be at most {maximum}", param)
        return count

    def read_hex(self, value: object, length: int, param: str) -> bytes:
        try:
            return read_hex(value, length, param)
        except Refused as refusal:
            raise self.refusal(refusal.message, param) from None

    def require_version(self, fields: Mapping[str, object], key: str, version: int) -> None:
        given = fields.get(key)
        if type(given) is not int or given != version:
            raise self.refusal(f"{key} must be {version}", key)

    def refusal(self, message: str, param: str | None) -> Refused:
        return Refused(message, param, self.error_code)


def member_path(param: str | None, name: str) -> str:
    return name if param is None else f"{param}.{name}"
