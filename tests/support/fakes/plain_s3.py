"""A plain S3 without content ids: the devnet's, served by rclone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from devnet.pins import PinStoreService, running_pin_store
from devnet.ports import pick_free


@attrs.frozen
class PlainS3:
    service: PinStoreService
    folder: Path

    @property
    def endpoint(self) -> str:
        return self.service.endpoint

    @property
    def bucket(self) -> str:
        return self.service.bucket

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of a coordinator that stores content here."""
        return {
            "PIN_STORE": self.service.kind,
            "PIN_STORE_ENDPOINT": self.service.endpoint,
            "PIN_STORE_KEY": self.service.key,
            "PIN_STORE_SECRET": self.service.secret,
            "PIN_STORE_BUCKET": self.service.bucket,
        }

    def served(self, cid: str) -> bytes | None:
        """Return the object under this id, as a reader of the bucket gets it."""
        path = self.folder / self.bucket / "ipfs" / cid
        return path.read_bytes() if path.exists() else None

    def held(self) -> set[str]:
        """Return the keys of the bucket."""
        root = self.folder / self.bucket
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@asynccontextmanager
async def running_plain_s3(folder: Path) -> AsyncIterator[PlainS3]:
    async with running_pin_store(pick_free(), pick_free(), folder, folder.parent) as service:
        yield PlainS3(service, folder)
