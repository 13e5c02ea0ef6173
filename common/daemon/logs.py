"""Logging of the daemons: structured events on standard error, one per state change.

"error" means a fault of this system, never a caller's mistake. Values of type Secret print as <SECRET>; keys, tokens,
signatures, payloads and results are not logged at any level.
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

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@attrs.frozen(slots=True)
class _LossyStream:
    """Text stream that drops what cannot be written: a full disk must not fail the code that logs."""

    stream: TextIO

    def write(self, text: str) -> int:
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


def set_up_logging(level: str, *also: structlog.typing.Processor) -> None:
    """Log readable lines to a terminal, JSON lines to a journal. Libraries' own logs go the same way.

    `also`: further processors, which see every event before its exception becomes text.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *also,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(_LossyStream(sys.stderr)),  # type: ignore[arg-type] # enough of one
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
    # Libraries log each request at INFO and headers at DEBUG: they are heard from WARNING on.
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def error_reporting(dsn: str, environment: str | None, release: str | None, transport: Any = None) -> Processor:
    """Start error reporting, and return the log processor that reports events with an exception.

    It sends the exception and its stack alone: no bodies, headers or addresses of callers, no local variables (keys
    live in them), no performance data. Fatal without the extra.
    """
    try:
        import sentry_sdk  # noqa: PLC0415 - an extra, and wanted by few
        from sentry_sdk.integrations.excepthook import ExcepthookIntegration  # noqa: PLC0415
        from sentry_sdk.utils import BadDsn  # noqa: PLC0415
    except ImportError:
        raise Fatal("SENTRY_DSN: install the extra for it: sealed-job-coordinator[sentry]") from None
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
    """For a daemon's `Supervisor`."""
    log.exception("task failed", task=task, failures_in_a_row=failures_in_a_row, exc_info=error)
