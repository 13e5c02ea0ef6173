"""Unexpected failures, sent to an error-reporting endpoint: the exception and its stack, and nothing of any request.

No bodies, headers or addresses of callers, no local variables (keys live in them), no performance data.
"""

from typing import Any

from structlog.typing import EventDict, Processor, WrappedLogger

from coordinatord.trouble import Fatal


def error_reporting(dsn: str, environment: str | None, release: str | None, transport: Any = None) -> Processor:
    """Started; the processor of log events that reports those with an exception. Fatal without the extra."""
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
        raise Fatal("SENTRY_DSN: is no data source name") from None

    def report(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method in ("error", "exception", "critical") and event.get("exc_info"):
            cause = event["exc_info"]
            sentry_sdk.capture_exception(cause if isinstance(cause, BaseException) else None)
        return event

    return report
