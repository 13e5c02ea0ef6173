"""Set up the daemons' logs: structured events on standard error, one per state change.

The level "error" means a fault of this system, never a client's mistake. Keys, tokens, signatures, payloads and results
are not logged at any level. Values of type Secret print as <SECRET>.
"""

import logging
import sys
from contextlib import suppress
from typing import Any, TextIO

import attrs
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from common.daemon.process import Fatal

log = structlog.get_logger(__name__)

_LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@attrs.frozen(slots=True)
class _LossyStream:
    """Text stream that ignores write errors, so that a full disk does not fail the code that logs."""

    stream: TextIO

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


def set_up_logging(level: str, *extra_processors: structlog.typing.Processor) -> None:
    """Log to standard error: readable lines on a terminal, otherwise JSON lines. Include the logs of libraries.

    `extra_processors` see every event before its exception becomes text.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *extra_processors,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LOG_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(_LossyStream(sys.stderr)),  # type: ignore[arg-type] # has write and flush
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Drop the libraries' DEBUG and INFO logs, which contain every request and its headers.
    root.setLevel(max(_LOG_LEVELS[level], logging.WARNING))


def start_error_reporting(dsn: str, environment: str | None, release: str | None, transport: Any = None) -> Processor:
    """Start error reporting, and return the log processor that reports events with an exception.

    Reports contain only the exception and its stack: no bodies, headers or client addresses, no local variables (which
    may hold keys), no performance data. Raise Fatal if the extra `sentry` is not installed or the DSN is malformed.
    """
    try:
        import sentry_sdk  # noqa: PLC0415 - optional dependency
        from sentry_sdk.integrations.excepthook import ExcepthookIntegration  # noqa: PLC0415
        from sentry_sdk.utils import BadDsn  # noqa: PLC0415
    except ImportError:
        raise Fatal("SENTRY_DSN needs the extra 'sentry': pip install 'sealed-job-coordinator[sentry]'") from None
    try:
        sentry_sdk.init(
            dsn,
            environment=environment,
            release=release,
            transport=transport,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[ExcepthookIntegration()],
            include_local_variables=False,
            max_request_body_size="never",
            max_breadcrumbs=0,
            server_name="",
        )
    except BadDsn:
        raise Fatal("SENTRY_DSN must be a data source name (https://key@host/project)") from None

    def report(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method in ("error", "exception", "critical") and event.get("exc_info"):
            cause = event["exc_info"]
            sentry_sdk.capture_exception(cause if isinstance(cause, BaseException) else None)
        return event

    return report


def log_task_failure(task: str, failures_in_a_row: int, error: BaseException) -> None:
    """Log the failure of a background task. Pass this function to `Supervisor` as `log_failure`."""
    log.exception("task failed", task=task, failures_in_a_row=failures_in_a_row, exc_info=error)
