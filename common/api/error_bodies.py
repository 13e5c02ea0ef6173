"""Error types of the specification, and the two shapes of an error response."""

from typing import Annotated, Literal

from common.api.shapes import Shape, described

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

ErrorMessage = Annotated[
    str,
    described("human-readable message; may change at any time, so never branch on it", "there is no model 'demo/none'"),
]


class ErrorBody(Shape, frozen=True):
    """An error: branch on `code`, then on `type`."""

    message: ErrorMessage
    type: Annotated[ErrorType, described("class of the error", "invalid_request_error")]
    param: Annotated[str | None, described("request field at fault, with dots if it is nested, or null")]
    code: Annotated[str | None, described("code of the error within its type, or null if the type is enough")]


class Error(Shape, frozen=True):
    """Body of an error response."""

    error: ErrorBody


class ModelNotFoundBody(Shape, frozen=True):
    """The error `model_not_found`. The specification gives it neither `param` nor the header `x-svc-retryable`."""

    message: ErrorMessage
    type: Annotated[Literal["not_found"], described("class of the error", "not_found")]
    code: Annotated[Literal["model_not_found"], described("no model has this name")]


class ModelNotFound(Shape, frozen=True):
    """Response to a request for an unknown model."""

    error: ModelNotFoundBody
