"""Client of the market of sealed jobs: `from svc import Client, SyncClient`.

Both are imported when they are first used: svcd imports `svc.wire` alone, and the processes that prepare the lines of a
batch import `svc.core`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svc.client import Client
    from svc.sync_client import SyncClient

__all__ = ["Client", "SyncClient"]


def __getattr__(name: str) -> object:
    if name == "Client":
        from svc.client import Client  # noqa: PLC0415

        return Client
    if name == "SyncClient":
        from svc.sync_client import SyncClient  # noqa: PLC0415

        return SyncClient
    raise AttributeError(f"module 'svc' has no attribute {name!r}")
