"""Convert expected errors, so that every error from the SDK is an SvcError."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import wraps
from typing import Any

from common.refusal import Refused
from svc.errors import FileFailed, OrderRefused, SvcError, T


def raises_svc_errors(kind: type[T]) -> type[T]:
    """Class decorator that converts expected errors of public methods to SvcError."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _convert_method_errors(method))
    return kind


@contextmanager
def _as_svc_errors() -> Iterator[None]:
    try:
        yield
    except (SvcError, ConnectionError):  # a caller's callback may raise ConnectionError, for example for a closed pipe
        raise
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None
    except OSError as error:
        raise FileFailed(error) from error
    except (ValueError, OverflowError) as error:
        raise OrderRefused(str(error), code="invalid_value") from error


def _convert_method_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def iterate(*args: Any, **kwargs: Any) -> Any:
            with _as_svc_errors():
                async with aclosing(method(*args, **kwargs)) as results:
                    async for result in results:
                        yield result

        return iterate
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with _as_svc_errors():
                return await method(*args, **kwargs)

        return call_async

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _as_svc_errors():
            return method(*args, **kwargs)

    return call
