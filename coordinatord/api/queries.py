"""Query strings: each parameter at most once, an empty value is an absent one, unknown names are left alone.

Unknown names are left alone because clients and proxies add their own; a known name that is misspelt shows in the
answer, while refusing all others would break every caller with each parameter that is taken away.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers

from common.refusal import Refused
from coordinatord.api.routes import Parameter

_MOST: Final = 64


def read_query(raw: bytes, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters present, each as its declaration reads it."""
    texts = _split(raw) if raw else {}
    values = {}
    for name, parameter in parameters.items():
        text = texts.get(name, "")
        if text:
            values[name] = parameter.kind.read(text, name)
        elif parameter.required:
            raise Refused(f"{name} is required", name)
    return values


def read_headers(headers: Headers, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """The same of request headers that a route declares."""
    values = {}
    for name, parameter in parameters.items():
        texts = headers.getlist(name)
        if len(texts) > 1:
            raise Refused(f"{name} appears more than once", name)
        if texts and texts[0]:
            values[name] = parameter.kind.read(texts[0], name)
    return values


def _split(raw: bytes) -> dict[str, str]:
    pairs = raw.split(b"&")
    if len(pairs) > _MOST:
        raise Refused(f"a query has at most {_MOST} parameters")
    texts: dict[str, str] = {}
    for pair in pairs:
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decode(raw_name), _decode(raw_value)
        if name in texts:
            raise Refused(f"{name} appears more than once", name)
        if name:
            texts[name] = value
    return texts


def _decode(part: bytes) -> str:
    if part.isalnum():  # as most are: nothing in it stands for anything else
        return part.decode("ascii")
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("the query is not UTF-8") from None
    if "\0" in text:
        raise Refused("the query holds a NUL")
    return text
