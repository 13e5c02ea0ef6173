"""Errors in OpenAI's shape: `{"error": {message, type, param, code}}` with its types, codes and statuses.

OpenAI's clients send a request again by its status (408, 409, 429, 5xx) unless `x-should-retry` says otherwise; here it
always says what is true, so that no client pays twice or waits for what will not change.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from common.refusal import Refused
from svc import errors
from svc.errors import SvcError

_SERVER: Final = "server_error"


class Problem(Exception):
    """An answer that is an error. `retry`: the same request may succeed later."""

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
        return {"error": error if self.job_id is None else error | {"svc": {"job_id": self.job_id}}}

    def headers(self) -> dict[str, str]:
        told = {"x-should-retry": "true" if self.retry else "false"}
        if self.job_id is not None:
            told["x-svc-job-id"] = self.job_id
        return told | ({"retry-after": "5"} if self.retry and self.status in {429, 503} else {})


class StorageFailed(Problem):
    """The state folder cannot be used, mostly because its disk is full. The same request may succeed later."""

    def __init__(self, error: Exception) -> None:
        message = f"the state folder of svc serve cannot be used: {error}; free some space on its disk"
        super().__init__(503, message, type=_SERVER, code="storage_failed", retry=True)


@contextmanager
def storing() -> Iterator[None]:
    """Raise failures of the disk and of SQLite as StorageFailed."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise StorageFailed(error) from error


def invalid(message: str, param: str | None = None, code: str | None = None) -> Problem:
    return Problem(400, message, code=code, param=param)


def unsupported(param: str, why: str) -> Problem:
    """A part of a request that cannot be kept for this model."""
    return Problem(400, f"{param} {why}", code="unsupported_parameter", param=param)


def no_such_model(name: str, why: str = "does not exist or takes no orders") -> Problem:
    return Problem(404, f"the model {name!r} {why}", code="model_not_found", param="model")


def over_budget(what: str) -> Problem:
    message = f"{what}; svc spend shows what was spent, and the settings of svc serve raise it"
    return Problem(429, message, type="insufficient_quota", code="insufficient_quota")


_MONEY: Final = frozenset({"InsufficientBalance", "payer_has_code", "over_max_amount"})
# Of an error that is the caller's own doing, although another program of theirs could send it again.
_OF_THE_REQUEST: Final = (errors.OrderRefused, errors.InvalidRequest)


def problem_of(error: SvcError, job_id: str | None = None) -> Problem:
    """The answer for an error of the client's SDK."""
    message, code, param = error.message, error.code, error.param
    if code in _MONEY:
        return Problem(429, message, type="insufficient_quota", code="insufficient_quota", param=param, job_id=job_id)
    if isinstance(error, errors.NotFound) and code == "model_not_found":
        return Problem(404, message, code=code, param="model")
    if isinstance(error, errors.JobFailed):
        return Problem(502, message, type=_SERVER, code=f"job_{code}", retry=True, job_id=job_id)
    if isinstance(error, errors.ResultUnreadable):
        return Problem(502, message, type=_SERVER, code=code, param=param, job_id=job_id)
    if isinstance(error, errors.NoProvider):
        return Problem(503, message, type=_SERVER, code=code, retry=True)
    if isinstance(error, errors.WaitTimedOut):
        return Problem(504, message, type=_SERVER, code=code, job_id=job_id)
    if isinstance(error, _OF_THE_REQUEST):
        return Problem(400, message, code=code, param=None if param and param.startswith("SVC_") else param)
    if error.retryable:
        return Problem(503, message, type=_SERVER, code=code or error.type, retry=True, job_id=job_id)
    return Problem(502, message, type=_SERVER, code=code or error.type, param=param, job_id=job_id)


def problem_of_refusal(refusal: Refused) -> Problem:
    return invalid(refusal.message, refusal.param, refusal.code)


def unexpected() -> Problem:
    """A fault of svc serve itself."""
    return Problem(500, "svc serve failed unexpectedly; its own output says more", type=_SERVER)
