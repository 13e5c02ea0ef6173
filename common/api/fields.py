"""Kinds of request fields. Each kind validates a value and describes it as a JSON Schema.

A request body is an attrs class with fields from `body_field(...)`. `read_object` reads and validates the body, and
`object_schema` returns the JSON Schema. Query parameters and path segments use the kinds directly. `null` counts as
missing, and so does an empty value in a query.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from common import scalars, strict_json
from common.api.limits import MAX_VALUES_PER_BODY
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from common.refusal import Refused

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Schema = dict[str, Any]  # a JSON Schema
_MAX_JSON_NUMBER_BITS: Final = 64  # examples write wider integers as strings


class Kind(Protocol[T_co]):
    """Kind of a value. A kind reads and validates a value, and describes valid values as a JSON Schema."""

    def read(self, value: object, param: str) -> T_co: ...
    def schema(self) -> Schema: ...


@attrs.frozen(slots=True)
class Uint:
    """Unsigned integer: a JSON number in the safe range, or a decimal string, from `minimum` to `maximum`."""

    bits: int
    minimum: int = 0
    maximum: int | None = None
    read: Callable[[object, str], int] = attrs.field(init=False, eq=False, repr=False)

    @read.default
    def _reader(self) -> Callable[[object, str], int]:
        return self._read_bounded if self.minimum or self.maximum is not None else scalars.uint_reader(self.bits)

    def _read_bounded(self, value: object, param: str) -> int:
        number = scalars.read_uint(value, self.bits, param)
        if number < self.minimum or number > self._largest_value():
            raise Refused(f"{param} must be in {self.minimum}..{self._largest_value()}", param)
        return number

    def _largest_value(self) -> int:
        return self.maximum if self.maximum is not None else 2**self.bits - 1

    def schema(self) -> Schema:
        number = {
            "type": "integer",
            "minimum": self.minimum,
            "maximum": min(self._largest_value(), scalars.MAX_SAFE_INTEGER),
        }
        return {
            "anyOf": [
                number,
                {"type": "string", "pattern": r"^(0|[1-9][0-9]*)$", "maxLength": len(str(self._largest_value()))},
            ]
        }


@attrs.frozen(slots=True)
class QueryUint:
    """Unsigned integer in a query parameter or path segment, written as a decimal string."""

    bits: int
    minimum: int = 0
    maximum: int | None = None

    def read(self, value: object, param: str) -> int:
        if not isinstance(value, str):
            raise Refused(f"{param} must be a decimal string", param)
        return Uint(self.bits, self.minimum, self.maximum).read(value, param)

    def schema(self) -> Schema:
        return {
            "type": "integer",
            "minimum": self.minimum,
            "maximum": self.maximum if self.maximum is not None else 2**self.bits - 1,
        }


@attrs.frozen(slots=True)
class Hex:
    """Exactly `length` bytes in hex, with 0x."""

    length: int
    read: Callable[[object, str], bytes] = attrs.field(init=False, eq=False, repr=False)

    @read.default
    def _reader(self) -> Callable[[object, str], bytes]:
        return scalars.hex_reader(self.length)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^0x[0-9a-fA-F]{{{2 * self.length}}}$"}


@attrs.frozen(slots=True)
class BareHex:
    """Exactly `length` bytes in hex, without 0x."""

    length: int

    def read(self, value: object, param: str) -> bytes:
        return scalars.read_bare_hex(value, self.length, param)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^[0-9a-fA-F]{{{2 * self.length}}}$"}


@attrs.frozen(slots=True)
class HexUpTo:
    """At most `max_bytes` bytes in hex, with 0x."""

    max_bytes: int

    def read(self, value: object, param: str) -> bytes:
        return scalars.read_hex_upto(value, self.max_bytes, param)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})*$", "maxLength": 2 + 2 * self.max_bytes}


@attrs.frozen(slots=True)
class Base64:
    """At most `max_bytes` bytes of canonical padded base64."""

    max_bytes: int

    def read(self, value: object, param: str) -> bytes:
        return scalars.read_base64(value, self.max_bytes, param)

    def schema(self) -> Schema:
        return {"type": "string", "contentEncoding": "base64", "maxLength": 4 * ((self.max_bytes + 2) // 3)}


@attrs.frozen(slots=True)
class Text:
    """A string of up to `max_length` characters."""

    max_length: int

    def read(self, value: object, param: str) -> str:
        if not isinstance(value, str):
            raise Refused(f"{param} must be a string", param)
        if len(value) > self.max_length:
            raise Refused(f"{param} must be at most {self.max_length} characters", param)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "maxLength": self.max_length}


@attrs.frozen(slots=True)
class VisibleAscii:
    """1 to `max_length` visible ASCII characters, which a header can hold."""

    max_length: int

    def read(self, value: object, param: str) -> str:
        text = Text(self.max_length).read(value, param)
        if not text or any(not "!" <= character <= "~" for character in text):
            raise Refused(f"{param} must consist of visible ASCII characters", param)
        return text

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[!-~]+$", "maxLength": self.max_length}


@attrs.frozen(slots=True)
class Choice:
    """One of the strings in `choices`. `code` is the error code for any other value."""

    choices: tuple[str, ...]
    code: str | None = None

    def read(self, value: object, param: str) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise Refused(f"{param} must be one of {', '.join(self.choices)}", param, self.code)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.choices)}


@attrs.frozen(slots=True)
class Boolean:
    """A JSON boolean."""

    def read(self, value: object, param: str) -> bool:
        if not isinstance(value, bool):
            raise Refused(f"{param} must be true or false", param)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@attrs.frozen(slots=True)
class WithErrorCode(Generic[T]):
    """Kind that sets the error code of another kind's refusals."""

    kind: Kind[T]
    code: str

    def read(self, value: object, param: str) -> T:
        try:
            return self.kind.read(value, param)
        except Refused as refusal:
            raise Refused(refusal.message, refusal.param, self.code) from None

    def schema(self) -> Schema:
        return self.kind.schema()


@attrs.frozen(slots=True)
class StringPairs:
    """An object of at most `max_pairs` strings, with names that the client chooses."""

    max_pairs: int
    max_key_length: int
    max_value_length: int

    def read(self, value: object, param: str) -> dict[str, str]:
        if not isinstance(value, dict):
            raise Refused(f"{param} must be an object", param)
        if len(value) > self.max_pairs:
            raise Refused(f"{param} must have at most {self.max_pairs} members", param)
        pairs: dict[str, str] = {}
        for name, text in value.items():
            if len(name) > self.max_key_length:
                raise Refused(f"names in {param} must be at most {self.max_key_length} characters", param)
            pairs[name] = Text(self.max_value_length).read(text, f"{param}.{name}")
        return pairs

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.max_pairs,
            "propertyNames": {"maxLength": self.max_key_length},
            "additionalProperties": Text(self.max_value_length).schema(),
        }


@attrs.frozen(slots=True)
class NestedObject(Generic[T]):
    """An object with the fields of `shape`."""

    shape: type[T]

    def read(self, value: object, param: str) -> T:
        if not isinstance(value, dict):
            raise Refused(f"{param} must be an object", param)
        return read_object(self.shape, value, f"{param}.")

    def schema(self) -> Schema:
        return object_schema(self.shape)


@attrs.frozen(slots=True)
class ListOf(Generic[T]):
    """An array of at most `max_items` items."""

    item: Kind[T]
    max_items: int

    def read(self, value: object, param: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise Refused(f"{param} must be an array", param)
        if len(value) > self.max_items:
            raise Refused(f"{param} must have at most {self.max_items} items", param)
        items: list[T] = []
        faults: list[Refused] = []
        for n, item in enumerate(value):
            try:
                items.append(self.item.read(item, f"{param}[{n}]"))
            except Refused as fault:
                faults.append(fault)
        if faults:
            raise Refused.combine(faults)
        return tuple(items)

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema(), "maxItems": self.max_items}


def parse_request_json(raw: bytes) -> object:
    """Parse a request's JSON. Limit the number of values before parsing, because each may take 100 bytes of memory."""
    if len(raw) > MAX_VALUES_PER_BODY and _may_have_more_values(raw, MAX_VALUES_PER_BODY):
        raise Refused(f"the body must have at most {MAX_VALUES_PER_BODY} JSON values")
    return strict_json.parse(raw)


def _may_have_more_values(raw: bytes, limit: int) -> bool:
    """Return True if the JSON has more than `limit` commas and opening brackets.

    Every value except the first comes after one of these characters. The loop uses `bytes.find`, which is faster than
    `bytes.count` on long base64.
    """
    for separator in (b",", b"[", b"{"):
        at = raw.find(separator)
        while at >= 0:
            limit -= 1
            if limit < 0:
                return True
            at = raw.find(separator, at + 1)
    return False


def body_field(
    kind: Kind[Any], about: str = "", *, optional: bool = False, default: object = None, example: Any = NO_EXAMPLE
) -> Any:
    """Declare a field of a request body. `about` and `example` default to the field's entry in `MEMBER_TEXTS`."""
    metadata = {"kind": kind, "about": about, "example": example}
    if optional:
        return attrs.field(default=default, kw_only=True, metadata=metadata)
    return attrs.field(kw_only=True, metadata=metadata)


def read_object(shape: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Read a body as `shape` and ignore unknown members. Raise one Refused for all malformed or missing fields."""
    faults: list[Refused] = []
    read = _read_fields(shape, values, prefix, faults)
    if faults:
        raise Refused.combine(faults)
    return shape(**read)


def read_object_or_faults(shape: type[T], values: Mapping[str, object]) -> T | list[Refused]:
    """Read a body as `shape`, or return the errors of all malformed or missing fields."""
    faults: list[Refused] = []
    read = _read_fields(shape, values, "", faults)
    return faults or shape(**read)


def _read_fields(shape: type[T], values: Mapping[str, object], prefix: str, faults: list[Refused]) -> dict[str, object]:
    read: dict[str, object] = {}
    for name, param, read_value, required in _field_readers(shape, prefix):  # type: ignore[arg-type] # every class is hashable
        value = values.get(name)
        if value is not None:
            try:
                read[name] = read_value(value, param)
            except Refused as fault:
                faults.append(fault)
        elif required:
            faults.append(Refused(f"{param} is required", param))
    return read


@functools.lru_cache(maxsize=1024)  # bounded, because clients choose the array positions in the prefix
def _field_readers(
    shape: type[Any], prefix: str
) -> "tuple[tuple[str, str, Callable[[object, str], object], bool], ...]":
    """Return name, parameter, reader and required flag of each field. The cache speeds up reading batch lines."""
    return tuple(
        (f.name, prefix + f.name, f.metadata["kind"].read, f.default is attrs.NOTHING) for f in _body_fields(shape)
    )


def object_schema(shape: type[object]) -> Schema:
    properties: Schema = {}
    required: list[str] = []
    for field in _body_fields(shape):
        schema = field.metadata["kind"].schema()
        if field.default is attrs.NOTHING:
            required.append(field.name)
        else:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[field.name] = {"description": field.metadata["about"] or MEMBER_TEXTS[field.name].about, **schema}
    return {"title": shape.__name__, "type": "object", "properties": properties, "required": required}


def object_example(shape: type[object], *without: str) -> dict[str, Any]:
    """Return an example body without the fields in `without`."""
    return {
        field.name: example_of(field.metadata["kind"], field.name, field.metadata["example"])
        for field in _body_fields(shape)
        if field.name not in without
    }


def example_of(kind: Kind[Any], name: str, own_example: Any = NO_EXAMPLE) -> Any:
    """Return an example value of a field.

    Build the example of a nested object or list from the examples of its fields or item. For other kinds, use
    `own_example` if given, otherwise the example in `MEMBER_TEXTS` or the first choice.
    """
    match kind:
        case NestedObject():
            return object_example(kind.shape)
        case ListOf():
            return [example_of(kind.item, name)]
        case Choice() if own_example is NO_EXAMPLE and (
            name not in MEMBER_TEXTS or MEMBER_TEXTS[name].example not in kind.choices
        ):
            return kind.choices[0]
    value = MEMBER_TEXTS[name].example if own_example is NO_EXAMPLE else own_example
    return int(value) if isinstance(kind, Uint | QueryUint) and kind.bits <= _MAX_JSON_NUMBER_BITS else value


def _body_fields(shape: type[Any]) -> Iterable["attrs.Attribute[Any]"]:
    return [field for field in attrs.fields(shape) if "kind" in field.metadata]


ADDRESS = Hex(20)
BYTES32 = Hex(32)
SIGNATURE = Hex(65)
UINT32 = Uint(32)
UINT64 = Uint(64)
UINT128 = Uint(128)
UINT256 = Uint(256)
