"""Send a program's spans to a collector, if the standard OTEL_* variables configure one."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from common.extras import DISTRIBUTION
from common.tracing import spans
from common.tracing.report import TraceReport

SHUTDOWN_TIMEOUT_S: Final = 3.0
SHUTDOWN_THREAD_NAME: Final = "tracing-shutdown"
_TRACING_EXTRA: Final = "tracing"
_SUPPORTED_EXPORTER: Final = "otlp"
_SUPPORTED_PROTOCOL: Final = "http/protobuf"


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return True if the variables name an exporter or a collector, and do not disable tracing."""
    exporter = _read_variable(environment, "OTEL_TRACES_EXPORTER")
    if exporter == "none" or _read_variable(environment, "OTEL_SDK_DISABLED") == "true":
        return False
    return bool(exporter or _read_traces_variable(environment, "ENDPOINT"))


@contextmanager
def exporting(service: str, report: TraceReport) -> Iterator[None]:
    """Export the spans created in the `with` block, if configured.

    `service` is the program's name in traces unless `OTEL_SERVICE_NAME` is set. If the export cannot start, for example
    because the extra is missing, report the reason and run without tracing.
    """
    if not is_configured(os.environ):
        yield
        return
    try:
        _require_supported(os.environ)
        from common.tracing.otlp import RunningExport  # noqa: PLC0415 - optional dependency

        export = RunningExport.start(service, report)
    except ModuleNotFoundError as error:
        report.report_start_failure(
            f"the Python package {error.name} is missing: pip install '{DISTRIBUTION}[{_TRACING_EXTRA}]'"
        )
        yield
        return
    except (ValueError, OSError, RuntimeError) as error:  # the SDK rejected a variable
        report.report_start_failure(str(error))
        yield
        return
    spans.use_provider(export.provider)
    try:
        yield
    finally:
        spans.use_provider(None)
        # Shut down in a thread, because the SDK waits for a slow collector for up to 30 s.
        shutdown = threading.Thread(target=export.provider.shutdown, name=SHUTDOWN_THREAD_NAME, daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_TIMEOUT_S)
        export.drop_waiting_spans()


def _require_supported(environment: Mapping[str, str]) -> None:
    exporter = _read_variable(environment, "OTEL_TRACES_EXPORTER")
    if exporter not in ("", _SUPPORTED_EXPORTER):
        raise ValueError(f"OTEL_TRACES_EXPORTER must be {_SUPPORTED_EXPORTER} or none, not {exporter}")
    protocol = _read_traces_variable(environment, "PROTOCOL")
    if protocol not in ("", _SUPPORTED_PROTOCOL):
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be {_SUPPORTED_PROTOCOL}, not {protocol}")


def _read_traces_variable(environment: Mapping[str, str], name: str) -> str:
    """Return the exporter's setting for traces, or otherwise its setting for all signals."""
    return _read_variable(environment, f"OTEL_EXPORTER_OTLP_TRACES_{name}") or _read_variable(
        environment, f"OTEL_EXPORTER_OTLP_{name}"
    )


def _read_variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name, "").strip().lower()
