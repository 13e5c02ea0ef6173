"""Build the operations of /openapi.json: parameters, bodies and responses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from common.api import errors
from common.api.error_bodies import ModelNotFound
from common.api.fields import Schema, example_of
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from coordinatord.http.openapi_schemas import Components, component_name_of
from coordinatord.http.routing import Parameter, Reply, Route

_JSON_MEDIA_TYPE: Final = "application/json"

# Replies that every route may send.
_COMMON_REPLIES: Final = (
    Reply(400),
    Reply(429, "busy"),
    Reply(431),
    Reply(500),
    Reply(503, "not_ready"),
)
_BODY_REPLIES: Final = (Reply(408), Reply(413, "body_too_large"))
_FORM_REPLIES: Final = (Reply(408),)


def _header_schema(about: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"description": about, "schema": schema, **({"required": True} if required else {})}


# Component name and schema of each response header. A second word in the key distinguishes variants of a header.
HEADERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "x-request-id": (
        "RequestId",
        _header_schema("id of this request; report it to the operator", {"type": "string"}, required=True),
    ),
    "date": ("Date", _header_schema("time of the answer by the coordinator's clock (RFC 9110)", {"type": "string"})),
    "x-svc-retryable true": (
        "MayBeSentAgain",
        _header_schema("the same request may succeed later", {"type": "string", "enum": ["true"]}, required=True),
    ),
    "x-svc-retryable false": (
        "MustChange",
        _header_schema("the request must change, or stop", {"type": "string", "enum": ["false"]}, required=True),
    ),
    "retry-after": ("RetryAfter", _header_schema("seconds to wait", {"type": "string", "pattern": "^[0-9]+$"})),
    "etag": ("ETag", _header_schema("value to send as `if-none-match` or `if-range`", {"type": "string"})),
    "preference-applied": (
        "PreferenceApplied",
        _header_schema(
            "`respond-async`, if the request preferred it and it was applied", {"type": "string"}, required=True
        ),
    ),
    "location": ("Location", _header_schema("route to follow", {"type": "string"}, required=True)),
    "content-range": (
        "ContentRange",
        _header_schema("position of these bytes, and the total number of bytes", {"type": "string"}, required=True),
    ),
    "x-svc-page-truncated": (
        "PageTruncated",
        _header_schema(
            "`true` if the page was cut at 4 MiB: continue from `x-svc-next-offset`",
            {"type": "string", "enum": ["true", "false"]},
            required=True,
        ),
    ),
    "x-svc-next-offset": (
        "NextOffset",
        _header_schema("`offset` of the next row", {"type": "string", "pattern": "^[0-9]+$"}),
    ),
}


def is_error(reply: Reply) -> bool:
    return reply.status >= 400 and reply.shape is None


def common_replies(route: Route) -> tuple[Reply, ...]:
    if route.body is not None:
        return (*_COMMON_REPLIES, *_BODY_REPLIES)
    return (*_COMMON_REPLIES, *_FORM_REPLIES) if route.form is not None else _COMMON_REPLIES


def operation_of(route: Route, components: Components) -> Schema:
    operation: Schema = {
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.about,
        "description": route.details or f"{route.about}.",
        "parameters": [
            *(_parameter_schema(name, "path", parameter, required=True) for name, parameter in route.segments.items()),
            *(
                _parameter_schema(name, "query", parameter, required=parameter.required)
                for name, parameter in route.query.items()
            ),
            *(
                _parameter_schema(name, "header", parameter, required=False)
                for name, parameter in route.headers.items()
            ),
        ],
        "responses": _response_schemas(route, components),
        "security": [{"session": []}] if route.session else [{}, {"session": []}] if route.session_if_query else [],
    }
    if route.body is not None:
        examples = {name: {"value": value} for name, value in route.body.examples().items()}
        content = {_JSON_MEDIA_TYPE: {"schema": route.body.schema(), "examples": examples}}
        limit = f"At most {route.body.max_bytes:,} bytes."
        operation["requestBody"] = {"required": True, "description": limit, "content": content}
    if route.form is not None:
        form = {"type": "object", "properties": dict(route.form.parts), "required": list(route.form.required)}
        operation["requestBody"] = {
            "required": True,
            "description": "A form, which is read while it arrives: send `purpose` before `file`.",
            "content": {"multipart/form-data": {"schema": form}},
        }
    return operation


def _parameter_schema(name: str, location: str, parameter: Parameter, *, required: bool) -> Schema:
    schema = {
        "name": name,
        "in": location,
        "required": required,
        "description": parameter.about or MEMBER_TEXTS[name].about,
        "schema": parameter.kind.schema(),
    }
    if required or parameter.example is not NO_EXAMPLE:
        schema["example"] = example_of(parameter.kind, name, parameter.example)
    return schema


def _response_schemas(route: Route, components: Components) -> Schema:
    by_status: dict[int, list[Reply]] = defaultdict(list)
    for reply in [*route.replies, *common_replies(route)]:
        if reply not in by_status[reply.status]:
            by_status[reply.status].append(reply)
    responses: Schema = {}
    for status, of_status in sorted(by_status.items()):
        shaped = [reply for reply in of_status if reply.shape is not None]
        refused = [reply for reply in of_status if is_error(reply)]
        examples = {
            component_name_of(reply.shape): components.build_example(reply.shape, reply.example) for reply in shaped
        }
        variants = [components.schema_of(reply.shape) for reply in shaped]
        if refused:
            variants.append(components.add_error_schema(route.id, status, refused))
            declared = errors.declared_error(refused[0].status, refused[0].code)
            body = {"message": declared.cause, "type": declared.types[0], "param": None, "code": declared.code}
            if refused[0].code == errors.RECEIPT_TIMEOUT:
                body["code"] = MEMBER_TEXTS["tx_hash"].example
            examples["Error"] = {"error": body}
        content = {
            _JSON_MEDIA_TYPE: {
                "schema": variants[0] if len(variants) == 1 else {"anyOf": variants},
                "examples": {name: {"value": value} for name, value in examples.items()},
            }
        }
        media = {kind: _bytes_media_type(reply, components) for reply in of_status for kind in reply.media}
        responses[str(status)] = {
            "description": _description_of(of_status),
            "headers": _headers_of(route, status, of_status),
            "content": media or content,
        }
    if route.cached_until_next_block:
        names = [
            "x-request-id",
            "date",
            "etag",
            *(["x-svc-page-truncated", "x-svc-next-offset"] if route.paged else []),
        ]
        responses["304"] = {
            "description": "The index has not moved since `if-none-match`.",
            "headers": _header_schemas(names),
        }
    return responses


def _bytes_media_type(reply: Reply, components: Components) -> Schema:
    """Return the media type object of a body that is not JSON. For JSONL, the object describes the shapes of lines."""
    schema: Schema = {"type": "string", "format": "binary"}
    if not reply.lines:
        return {"schema": schema}
    shapes = [components.schema_of(line) for line in reply.lines]
    each = {"description": "each line of a file of lines", **(shapes[0] if len(shapes) == 1 else {"anyOf": shapes})}
    return {
        "schema": {**schema, "contentSchema": each},
        "x-svc-lines": [components.build_example(line, NO_EXAMPLE) for line in reply.lines],
    }


def _description_of(replies: Sequence[Reply]) -> str:
    """Return the descriptions of the replies, with one line per error."""
    about = [f"{reply.about}." for reply in replies if reply.about]
    lines = []
    for reply in filter(is_error, replies):
        error = errors.declared_error(reply.status, reply.code)
        name = f"`{error.code}`" if error.code is not None else "the transaction's hash"
        if reply.code != errors.RECEIPT_TIMEOUT and error.code is None:
            name = "no code" if error.types == ("invalid_request_error",) else f"`{error.types[0]}`, no code"
        lines.append(f"- {name}: {error.cause}. Then: {error.remedy}.")
    return "\n".join([*about, *lines])


def _headers_of(route: Route, status: int, replies: Sequence[Reply]) -> Schema:
    names = ["x-request-id", "date", *(name for reply in replies for name in reply.headers)]
    if status >= 400 and any(reply.shape is not ModelNotFound for reply in replies):
        names.append(f"x-svc-retryable {'true' if status in (429, 503) else 'false'}")
    if status in (429, 503):
        names.append("retry-after")
    if status < 400 and route.cached_until_next_block:
        names.append("etag")
    if status < 400 and route.paged:
        names += ["x-svc-page-truncated", "x-svc-next-offset"]
    return _header_schemas(names)


def _header_schemas(names: Iterable[str]) -> Schema:
    return {name.split()[0]: {"$ref": f"#/components/headers/{HEADERS[name][0]}"} for name in names}
