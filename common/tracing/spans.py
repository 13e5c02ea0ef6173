"""Create spans. Before `use_provider` is called, OpenTelemetry is not imported and spans do nothing.

A context is a string: the W3C `traceparent` of a span. Contexts from other parties must pass `read_traceparent`.

Attributes must not contain payloads, keys, signatures, tokens, callers' addresses or error messages. A failed span has
only the name of the error's class.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider

MAX_LINKS: Final = 128  # the SDK's limit for one span
_TRACER_NAME: Final = "sealed-job-coordinator"

# Only version 00 is accepted, and of its flags only `sampled` is used.
_TRACEPARENT_PATTERN: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_TRACEPARENT_LENGTH: Final = 55
_SAMPLED_FLAG: Final = 1
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000

SpanKindName = Literal["internal", "server"]
AttributeValue = str | int | bool | float

_tracer: "Tracer | None" = None


def use_provider(provider: "TracerProvider | None") -> None:
    """Create all further spans with this provider. None turns tracing off."""
    global _tracer  # noqa: PLW0603 - one tracer per process, as OpenTelemetry has one provider
    _tracer = None if provider is None else provider.get_tracer(_TRACER_NAME)


def is_on() -> bool:
    return _tracer is not None


class _NoSpan:
    """Context manager without effect. It has no state, so all callers share one instance."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_NO_SPAN: Final = _NoSpan()


def span(
    name: str, *, parent: str | None = None, kind: SpanKindName = "internal", **attributes: AttributeValue
) -> AbstractContextManager[None]:
    """Trace the `with` block as a span, a child of `parent` or of the current span.

    Do not put a `yield` of an async generator into the block, because the code before and after the `yield` may run in
    different tasks.
    """
    return _NO_SPAN if _tracer is None else _start_span(_tracer, name, parent, kind, attributes)


def add_attributes(**attributes: AttributeValue) -> None:
    """Add attributes to the current span."""
    if _tracer is None:
        return
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    trace.get_current_span().set_attributes(attributes)


def mark_failed(reason: str) -> None:
    """Mark the current span as failed. `reason` is a code or the name of a class, never the text of an error."""
    if _tracer is None:
        return
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    _mark_failed(trace.get_current_span(), reason)


def current_context() -> str | None:
    """Return the context of the current span, or None if there is no span."""
    if _tracer is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    context = trace.get_current_span().get_span_context()
    return _write_context(context) if context.is_valid else None


def record_span(
    name: str,
    *,
    started: float,
    ended: float,
    parent: str | None = None,
    links: Sequence[str] = (),
    **attributes: AttributeValue,
) -> str | None:
    """Create a span for work that has ended. Return its context, or None if tracing is off. Times are Unix seconds.

    Use this function for a step that outlives a process or serves several orders: no span object exists while the step
    runs.
    """
    if _tracer is None:
        return None
    new_span = _tracer.start_span(
        name,
        _parent_context(parent),
        attributes=attributes,
        links=[_link_to(context) for context in links[:MAX_LINKS]],
        start_time=int(started * _NANOSECONDS_PER_SECOND),
    )
    new_span.end(int(ended * _NANOSECONDS_PER_SECOND))
    return _write_context(new_span.get_span_context())


def read_traceparent(value: object) -> str | None:
    """Return a context that another party sent, or None if the context is malformed or has another version than 00.

    The result has 55 characters: hex digits and dashes. Its flags are `01` or `00`.
    """
    if isinstance(value, bytes) and len(value) == _TRACEPARENT_LENGTH:
        value = value.decode("latin-1")
    if (
        not isinstance(value, str)
        or len(value) != _TRACEPARENT_LENGTH
        or (match := _TRACEPARENT_PATTERN.fullmatch(value)) is None
    ):
        return None
    trace_id, span_id, flags = match.groups()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & _SAMPLED_FLAG:02x}"


def is_sampled(context: str | None) -> bool:
    return context is not None and context.endswith("1")


@contextmanager
def _start_span(
    tracer: "Tracer", name: str, parent: str | None, kind: SpanKindName, attributes: dict[str, AttributeValue]
) -> Iterator[None]:
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    # The texts of exceptions may contain addresses and parts of requests, so OpenTelemetry must not record them.
    with tracer.start_as_current_span(
        name,
        _parent_context(parent),
        kind=trace.SpanKind[kind.upper()],
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as new_span:
        try:
            yield
        except Exception as error:
            _mark_failed(new_span, type(error).__name__)
            raise


def _mark_failed(failed: "Span", reason: str) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    failed.set_attribute("error.type", reason)
    failed.set_status(trace.StatusCode.ERROR)


def _parent_context(parent: str | None) -> "Context | None":
    """Return OpenTelemetry's context for a child of `parent`, or None for a child of the current span."""
    if parent is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    return trace.set_span_in_context(trace.NonRecordingSpan(_parse_context(parent)))


def _link_to(context: str) -> "Link":
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    return trace.Link(_parse_context(context))


def _parse_context(context: str) -> "SpanContext":
    from opentelemetry import trace  # noqa: PLC0415 - optional dependency

    _, trace_id, span_id, flags = context.split("-")
    return trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
    )


def _write_context(context: "SpanContext") -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & _SAMPLED_FLAG:02x}"
