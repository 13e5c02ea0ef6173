"""Errors in OpenAI's format: `{"error": {message, type, param, code}}` with OpenAI's types, codes and statuses.

OpenAI's clients retry by status (408, 409, 429, 5xx) unless `x-should-retry` is set. This server always sets the
header, so that no client pays twice or retries without effect.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from common.refusal import Refused
from svc import errors
from svc.errors import SvcError
from svc.serve.request_ids import job_id_headers, job_id_members

_SERVER_ERROR: Final = "server_error"
_LACKING_FUNDS_CODES: Final = frozenset({"InsufficientBalance", "payer_has_code", "over_max_amount"})
# Errors of the request itself, which a retry cannot fix.
_REQUEST_ERRORS: Final = (errors.OrderRefused, errors.InvalidRequest)


class Problem(Exception):
    """Error reply. `retry` means that the same request may succeed later. `job_id` may name a request in a tab."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry: bool = False,
        job_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry = retry
        self.job_id = job_id

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error if self.job_id is None else error | {"svc": job_id_members(self.job_id)}}

    def headers(self) -> dict[str, str]:
        headers = {"x-should-retry": "true" if self.retry else "false"}
        if self.job_id is not None:
            headers |= job_id_headers(self.job_id)
        return headers | ({"retry-after": "5"} if self.retry and self.status in {429, 503} else {})


class StorageFailed(Problem):
    """The state folder cannot be written, usually because its disk is full. The same request may succeed later."""

    def __init__(self, error: Exception) -> None:
        message = f"cannot write to the state folder of svc serve: {error}; free space on its disk"
        super().__init__(503, message, type=_SERVER_ERROR, code="storage_failed", retry=True)


@contextmanager
def convert_storage_errors() -> Iterator[None]:
    """Convert errors of the disk and of SQLite to StorageFailed."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise StorageFailed(error) from error


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> Problem:
    return Problem(400, message, code=code, param=param)


def unsupported_parameter(param: str, reason: str) -> Problem:
    """Return the error for a parameter that this model does not support."""
    return Problem(400, f"{param} {reason}", code="unsupported_parameter", param=param)


def model_not_found(name: str, reason: str = "does not exist or accepts no orders") -> Problem:
    return Problem(404, f"the model {name!r} {reason}", code="model_not_found", param="model")


def budget_problem(details: str) -> Problem:
    message = f"{details}; see svc spend, and raise the budget in serve.toml"
    return Problem(429, message, type="insufficient_quota", code="insufficient_quota")


def problem_from_error(error: SvcError, job_id: str | None = None) -> Problem:
    """Convert an error of the SDK to a reply."""
    message, code, param = error.message, error.code, error.param
    if code in _LACKING_FUNDS_CODES:
        return Problem(429, message, type="insufficient_quota", code="insufficient_quota", param=param, job_id=job_id)
    if isinstance(error, errors.NotFound) and code == "model_not_found":
        return Problem(404, message, code=code, param="model")
    if isinstance(error, errors.JobFailed):
        return Problem(502, message, type=_SERVER_ERROR, code=f"job_{code}", retry=True, job_id=job_id)
    if isinstance(error, errors.ResultUnreadable):
        return Problem(502, message, type=_SERVER_ERROR, code=code, param=param, job_id=job_id)
    if isinstance(error, errors.NoProvider):
        return Problem(503, message, type=_SERVER_ERROR, code=code, retry=True)
    if isinstance(error, errors.WaitTimedOut):
        return Problem(504, message, type=_SERVER_ERROR, code=code, job_id=job_id)
    if isinstance(error, _REQUEST_ERRORS):
        return Problem(400, message, code=code, param=None if param and param.startswith("SVC_") else param)
    if error.retryable:
        return Problem(503, message, type=_SERVER_ERROR, code=code or error.type, retry=True, job_id=job_id)
    return Problem(502, message, type=_SERVER_ERROR, code=code or error.type, param=param, job_id=job_id)


def problem_from_refusal(refusal: Refused) -> Problem:
    return invalid_request(refusal.message, refusal.param, refusal.code)


def internal_problem() -> Problem:
    """Return the reply for a bug in svc serve."""
    return Problem(500, "svc serve failed unexpectedly; see its output", type=_SERVER_ERROR)
