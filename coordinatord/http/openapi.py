"""Build /openapi.json from the routes' declarations, the descriptions of shapes and the table of errors."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from anyio import to_thread

from common.api import errors
from common.api.error_bodies import Error
from common.api.fields import Schema
from coordinatord.http.openapi_operations import HEADERS, common_replies, operation_of
from coordinatord.http.openapi_schemas import Components, component_name_of
from coordinatord.http.responses import Response
from coordinatord.http.routing import Reply, Request, Route

TAGS: Final[Mapping[str, str]] = {
    "Deployment": "Health, readiness, and the values to sign with: chain id, contracts, fees.",
    "Sessions": "A wallet signs a nonce and gets a bearer token for files, batches, ops, asks and the poll.",
    "Models": "The models of the market.",
    "Jobs": "Jobs of a client: read the market, get a quote, post, follow, cancel.",
    "Files": "Containers and results that are too large for a body, and the lines of batches. Only for their owner.",
    "Batches": "Many jobs from one file of lines. Only for their owner.",
    "Tabs": "Sealed requests and answers of a claimed job, between its owner and its provider.",
    "Webhooks": "URLs that receive the events of an owner's jobs and batches. Only for their owner.",
    "Job book": "All jobs on the chain, and the poll of providers.",
    "Provider operations": "Messages that providers sign: claims, settles, fails, identity, capacity and prices.",
    "Providers": "Contents of the registries: providers, their asks, the price floors, the escrow's allowlist.",
    "Escrow": "The key that open orders are sealed to. A coordinator without one answers 403 `escrow_unavailable`.",
}
_API_DESCRIPTION: Final = """\
A coordinator of a market of sealed compute jobs that are settled on a chain.

Bodies are JSON. Integers that may exceed 32 bits are decimal strings in answers; in requests they are numbers up to \
2^53 − 1 or decimal strings. Hex has `0x` and lower case unless a member says otherwise; requests may use either \
case, so compare bytes and never texts. Times are Unix seconds. Amounts are base units of the payment token, rates \
are base units per 10^6 units. Ignore members that you do not know.

With a status of 400 or above, the body is an error, `{"error": {message, type, param, code}}`, with these \
exceptions: a quote (402, 409), candidates or a plan (402), `{"ok": false, "reason"}` (POST /evm/ops), readiness \
(GET /readyz). Test for `quote` before `error`. Handle an error by its `code`, then by its `type`. **402** is the \
requested answer: no error, and not the x402 protocol. **409** means that the chain refuses or would refuse the \
request. A 409 with a `quote` means that the price has changed: sign a new payment. Decide by the header \
`x-svc-retryable` whether to send again, never by the status. Members, codes and contract errors may be added: handle \
an unknown code by its type.

In the examples the signatures of an order, its payment and its settle are valid: the documentation's worked order has \
their digests. `0x1111…1b` is a placeholder and not a valid signature."""
_SESSION_DESCRIPTION: Final = (
    "`authorization: Bearer svc_sess_…`, from GET /auth/nonce and POST /auth/session. Routes without this"
    " scheme are public, or are authorised by the signatures in the body."
)


def openapi_route(routes: Sequence[Route]) -> Route:
    """Return the route /openapi.json, which describes `routes`. The first request builds the document, because building
    takes 0.1 s and would delay every start."""
    document = b""

    async def serve(_: Request) -> Response:
        nonlocal document
        if not document:
            document = await to_thread.run_sync(lambda: msgspec.json.encode(build_openapi_document(routes)))
        return Response(200, document)

    return Route(
        method="GET",
        path="/openapi.json",
        id="getOpenapi",
        tag="Deployment",
        about="This document",
        handler=serve,
        replies=(Reply(200, shape=dict),),
    )


def build_openapi_document(routes: Sequence[Route]) -> Schema:
    replies = [reply for route in routes for reply in route.replies]
    shapes = {reply.shape for reply in replies if reply.shape is not None} | {Error}
    shapes |= {line for reply in replies for line in reply.lines}
    components = Components(sorted(shapes, key=component_name_of))
    paths: Schema = defaultdict(dict)
    for route in routes:
        paths[route.path.replace("...", "")][route.method.lower()] = operation_of(route, components)
    headers = dict(HEADERS.values())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sealed-job coordinator",
            "version": "1",
            "description": _API_DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the coordinator that serves this document"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.schemas.items())),
            "headers": headers,
            "securitySchemes": {
                "session": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "svc_sess_…",
                    "description": _SESSION_DESCRIPTION,
                }
            },
        },
        "x-svc-errors": list(_error_table(routes)),
        "x-svc-contract-errors": [
            {"names": entry.names, "said_of": entry.calls, "cause": entry.cause, "remedy": entry.remedy}
            for entry in errors.CONTRACT_ERRORS
        ],
        "x-svc-line-errors": [
            {"code": code, "cause": cause, "remedy": remedy} for code, (cause, remedy) in errors.LINE_ERRORS.items()
        ],
    }


def _error_table(routes: Sequence[Route]) -> Iterable[Schema]:
    """Yield each error once, with its statuses, whether a retry may succeed, and the remedy."""
    statuses: dict[int | str, set[int]] = defaultdict(set)
    for route in routes:
        for reply in [*route.replies, *common_replies(route)]:
            if reply.status >= 400 and (reply.shape is None or reply.code is not None):
                statuses[reply.status if reply.code is None else reply.code].add(reply.status)
    # No route declares 405 and 505, because the server sends these responses before a route is known.
    statuses |= {405: {405}, 505: {505}}
    for key, error in [*errors.UNCODED_ERRORS.items(), *errors.ERRORS_BY_CODE.items()]:
        yield {
            "code": "the transaction's hash" if key == errors.RECEIPT_TIMEOUT else error.code,
            "types": error.types,
            "statuses": sorted(statuses[key]),
            "retryable": statuses[key] <= {429, 503},
            "cause": error.cause,
            "remedy": error.remedy,
        }
