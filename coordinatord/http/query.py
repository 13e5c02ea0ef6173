"""Read query strings and headers. Each parameter may occur at most once. An empty value counts as absent.

Unknown parameters are ignored. Otherwise, parameters that proxies add would be rejected, and removing a parameter from
a route would break its callers.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from common.daemon.asgi import RawHeaders, header_values
from common.refusal import Refused
from coordinatord.http.routing import Parameter

_MAX_PARAMETERS: Final = 64


def read_query(raw: bytes, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the parameters that are present, parsed as they are declared."""
    texts = _split_query(raw) if raw else {}
    values: dict[str, Any] = {}
    faults: list[Refused] = []
    for name, parameter in parameters.items():
        text = texts.get(name, "")
        if text:
            _read_parameter_into(values, faults, name, parameter, text)
        elif parameter.required:
            faults.append(Refused(f"{name} is required", name))
    if faults:
        raise Refused.combine(faults)
    return values


def _read_parameter_into(
    values: dict[str, Any], faults: list[Refused], name: str, parameter: Parameter, text: str
) -> None:
    try:
        values[name] = parameter.kind.read(text, name)
    except Refused as fault:
        faults.append(fault)


def read_headers(headers: RawHeaders, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the request headers that the route declares, parsed as they are declared."""
    values: dict[str, Any] = {}
    faults: list[Refused] = []
    for name, parameter in parameters.items():
        texts = header_values(headers, name.encode())
        # HTTP defines the value of `prefer` as a list, so several headers form one list.
        if name == "prefer":
            texts = [",".join(texts)]
        if len(texts) > 1:
            faults.append(Refused(f"{name} appears more than once", name))
        elif texts and texts[0]:
            _read_parameter_into(values, faults, name, parameter, texts[0])
    if faults:
        raise Refused.combine(faults)
    return values


def _split_query(raw: bytes) -> dict[str, str]:
    pairs = raw.split(b"&")
    if len(pairs) > _MAX_PARAMETERS:
        raise Refused(f"the query must have at most {_MAX_PARAMETERS} parameters")
    texts: dict[str, str] = {}
    for pair in pairs:
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decode_query_part(raw_name), _decode_query_part(raw_value)
        if name in texts:
            raise Refused(f"{name} appears more than once", name)
        if name:
            texts[name] = value
    return texts


def _decode_query_part(part: bytes) -> str:
    # Fast path: most names and values contain no escapes.
    if part.isalnum():
        return part.decode("ascii")
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("the query must be UTF-8") from None
    if "\0" in text:
        raise Refused("the query must not contain a NUL character")
    return text
