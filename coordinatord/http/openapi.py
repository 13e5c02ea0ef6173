"""/openapi.json, written from the routes' own declarations."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from common.wire.fields import Schema
from common.wire.shapes import OMITTABLE, Error
from coordinatord.http.responses import Response
from coordinatord.http.routing import Reply, Request, Route

_REF: Final = "#/components/schemas/{name}"
# Answers that any request may get, whatever its route.
_EVERYWHERE: Final = (
    Reply(400),
    Reply(404),
    Reply(429, "busy"),
    Reply(500),
    Reply(503, "not_ready"),
)
_WITH_BODY: Final = (Reply(408), Reply(413, "body_too_large"))
_WITH_FORM: Final = (Reply(408),)
_REQUEST_ID: Final = {"x-request-id": {"schema": {"type": "string"}, "required": True}}
_RETRYABLE: Final = {"x-svc-retryable": {"schema": {"type": "string", "enum": ["true", "false"]}}}
_RETRY_AFTER: Final = {"retry-after": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}  # seconds
_ETAG: Final = {"etag": {"schema": {"type": "string"}}}
_PAGE: Final = {
    "x-svc-page-truncated": {"schema": {"type": "string", "enum": ["true", "false"]}, "required": True},
    "x-svc-next-offset": {"schema": {"type": "string", "pattern": "^[0-9]+$"}},
}


def openapi_route(routes: Sequence[Route]) -> Route:
    """The route that serves the document of `routes`."""
    document = msgspec.json.encode(describe(routes))

    async def serve(_: Request) -> Response:
        return Response(200, document)

    return Route(
        method="GET",
        path="/openapi.json",
        about="This document",
        handler=serve,
        replies=(Reply(200, shape=dict),),
    )


def describe(routes: Sequence[Route]) -> Schema:
    answered = {reply.shape for route in routes for reply in route.replies if reply.shape is not None} | {Error}
    by_shape, components = _schemas(sorted(answered, key=_name_of))
    paths: Schema = defaultdict(dict)
    for route in routes:
        paths[route.path.replace("...", "")][route.method.lower()] = _operation(route, by_shape)
    return {
        "openapi": "3.1.0",
        "info": {"title": "coordinatord", "version": "1", "description": "A coordinator for sealed compute jobs"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"session": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(shapes: Sequence[Any]) -> tuple[dict[Any, Schema], Schema]:
    """Schemas of the shapes, and the components that they refer to, as the coordinator fills them in: with its number
    type, so that a generic shape goes by its plain name; and every member sent, but for those that are `Omittable`."""
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REF)
    plain = {name: _plain(component["title"]) for name, component in components.items()}
    references = {_REF.format(name=name): _REF.format(name=named) for name, named in plain.items()}

    def as_sent(schema: Any) -> Any:
        if isinstance(schema, str):
            return references.get(schema, schema)
        if isinstance(schema, list):
            return [as_sent(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        sent = {name: as_sent(each) for name, each in schema.items()}
        if sent.pop(OMITTABLE, False):
            (sent,) = (variant for variant in sent["anyOf"] if variant != {"type": "null"})
        return sent

    def component(schema: Schema) -> Schema:
        always = [name for name, member in schema["properties"].items() if OMITTABLE not in member]
        sent: Schema = as_sent(schema)
        for name in always:
            sent["properties"][name].pop("default", None)
        return {**sent, "title": _plain(sent["title"]), "required": always}

    named = {plain[name]: component(schema) for name, schema in components.items()}
    if len(named) != len(components):
        raise AssertionError("two shapes of the API have the same name")
    return dict(zip(shapes, map(as_sent, schemas), strict=True)), named


def _name_of(shape: Any) -> str:
    return _plain(getattr(shape, "__origin__", shape).__name__)


def _plain(name: str) -> str:
    """The component's name for a class: without its parameters, and without the suffix that sets it apart from the
    class of the same thing elsewhere."""
    return name.partition("[")[0].removesuffix("Shape")


def _operation(route: Route, by_shape: dict[Any, Schema]) -> Schema:
    operation: Schema = {
        "summary": route.about,
        "operationId": f"{route.method.lower()} {route.path}",
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": kind.schema()}
                for name, kind in route.segments.items()
            ),
            *(
                {
                    "name": name,
                    "in": "query",
                    "required": parameter.required,
                    "description": parameter.about,
                    "schema": parameter.kind.schema(),
                }
                for name, parameter in route.query.items()
            ),
            *(
                {"name": name, "in": "header", "description": parameter.about, "schema": parameter.kind.schema()}
                for name, parameter in route.headers.items()
            ),
        ],
        "responses": _responses(route, by_shape),
    }
    if route.body is not None:
        content = {"application/json": {"schema": route.body.schema()}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.form is not None:
        form = {"type": "object", "properties": dict(route.form.parts), "required": list(route.form.parts)}
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    if route.session:
        operation["security"] = [{"session": []}]
    elif route.session_with is not None:
        operation["security"] = [{}, {"session": []}]
    return operation


def _responses(route: Route, by_shape: dict[Any, Schema]) -> Schema:
    replies = [
        *route.replies,
        *_EVERYWHERE,
        *(_WITH_BODY if route.body is not None else ()),
        *(_WITH_FORM if route.form is not None else ()),
    ]
    by_status: dict[int, list[Reply]] = defaultdict(list)
    for reply in replies:
        by_status[reply.status].append(reply)
    responses: Schema = {}
    for status, several in sorted(by_status.items()):
        bodies = {reply.shape if reply.shape is not None else Error for reply in several}
        variants = [by_shape[shape] for shape in sorted(bodies, key=_name_of)]
        codes = sorted({reply.code for reply in several if reply.code is not None})
        responses[str(status)] = {
            "description": f"codes: {', '.join(codes)}" if codes else "see the schema",
            "headers": {**_REQUEST_ID, **_headers_of(route, status)},
            "content": {"application/json": {"schema": variants[0] if len(variants) == 1 else {"anyOf": variants}}},
        }
        if media := [kind for reply in several for kind in reply.media]:
            responses[str(status)]["content"] = {kind: {} for kind in media}
    if route.kept_while_index_stands:
        headers = {**_REQUEST_ID, **_ETAG, **(_PAGE if route.paged else {})}
        responses["304"] = {"description": "the index has not moved since", "headers": headers}
    return responses


def _headers_of(route: Route, status: int) -> Schema:
    if status >= 400:
        return {**_RETRYABLE, **(_RETRY_AFTER if status in (429, 503) else {})}
    return {**(_ETAG if route.kept_while_index_stands else {}), **(_PAGE if route.paged else {})}
