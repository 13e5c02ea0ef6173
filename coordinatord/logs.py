"""One logging policy: structured events on standard error, one per state change.

"error" means a fault of this system, never a caller's mistake. Values of type Secret print as <SECRET>; keys, tokens,
signatures and payloads are not logged at any level.
"""

import logging
import sys

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up_logging(level: str, *also: structlog.typing.Processor) -> None:
    """Readable lines on a terminal, JSON lines for a journal. Libraries' own logs go the same way.

    `also`: what else sees every event, while its exception is still one.
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
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
    # Libraries log each request at INFO and say things at DEBUG that hold headers: they are heard from WARNING on.
    root.setLevel(max(_LEVELS[level], logging.WARNING))
