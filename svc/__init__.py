"""Client of the market of sealed jobs: `from svc import Client, SyncClient`.

Each class is imported at its first use, because svcd needs only `svc.wire`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svc.client import Client
    from svc.sync_client import SyncClient

__all__ = ["Client", "SyncClient", "enable_tracing"]


def enable_tracing() -> None:
    """Trace orders with this application's OpenTelemetry provider. Set up the provider before the call."""
    from opentelemetry import trace  # noqa: PLC0415 - the application installs it

    from common.tracing import spans  # noqa: PLC0415

    spans.use_provider(trace.get_tracer_provider())


def __getattr__(name: str) -> object:
    if name == "Client":
        from svc.client import Client  # noqa: PLC0415

        return Client
    if name == "SyncClient":
        from svc.sync_client import SyncClient  # noqa: PLC0415

        return SyncClient
    raise AttributeError(f"module 'svc' has no attribute {name!r}")
