"""Log problems of the daemons' tracing. Implements `TraceReport` of common/tracing."""

import structlog

log = structlog.get_logger(__name__)


class TraceLog:
    def report_start_failure(self, reason: str) -> None:
        log.warning("tracing not started", reason=reason)

    def report_first_drop(self, reason: str) -> None:
        log.warning("spans dropped", reason=reason)

    def report_drop_count(self, count: int) -> None:
        log.info("dropped spans counted", count=count)
