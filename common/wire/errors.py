"""Error bodies: the types that the specification names, and the two envelopes that carry them."""

from typing import Literal

from common.wire.shapes import Shape

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "invalid_op_signature",
    "not_found",
    "busy",
    "not_ready",
    "chain_unreachable",
    "relay_unavailable",
    "pinner_unavailable",
    "receipt_timeout",
    "internal_error",
]


class ErrorBody(Shape, frozen=True):
    message: str
    type: ErrorType
    param: str | None
    code: str | None


class Error(Shape, frozen=True):
    error: ErrorBody


class ModelNotFoundBody(Shape, frozen=True):
    message: str
    type: ErrorType
    code: Literal["model_not_found"]


class ModelNotFound(Shape, frozen=True):
    error: ModelNotFoundBody
