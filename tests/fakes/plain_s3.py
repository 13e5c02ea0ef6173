"""A plain S3 that knows nothing of content ids: rclone serves a folder, and checks every signature."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs

from devnet.ports import LOOPBACK, pick_free

RCLONE = Path(sys.executable).parent / "rclone"


@attrs.frozen
class PlainS3:
    endpoint: str
    bucket: str
    key: str
    secret: str
    folder: Path

    @property
    def settings(self) -> dict[str, object]:
        """Of a coordinator that keeps its content here."""
        return {
            "PIN_STORE": "s3",
            "PIN_STORE_ENDPOINT": self.endpoint,
            "PIN_STORE_KEY": self.key,
            "PIN_STORE_SECRET": self.secret,
            "PIN_STORE_BUCKET": self.bucket,
        }

    def served(self, cid: str) -> bytes | None:
        """What a reader of the bucket is given under this id."""
        path = self.folder / self.bucket / "ipfs" / cid
        return path.read_bytes() if path.exists() else None

    def held(self) -> set[str]:
        """Keys of the bucket."""
        root = self.folder / self.bucket
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@asynccontextmanager
async def running_plain_s3(folder: Path) -> AsyncIterator[PlainS3]:
    port = pick_free()
    store = PlainS3(f"http://{LOOPBACK}:{port}", "market", "KEY", "SECRET", folder)
    (folder / store.bucket).mkdir(parents=True)
    command = (str(RCLONE), "serve", "s3", "--addr", f"{LOOPBACK}:{port}", "--config", "/dev/null", str(folder))
    environment = {"RCLONE_AUTH_KEY": f'"{store.key},{store.secret}"', "HOME": str(folder)}
    with (folder.parent / "rclone.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220 - it is a moment
        try:
            with anyio.fail_after(60):
                while True:
                    try:
                        await (await anyio.connect_tcp(LOOPBACK, port)).aclose()
                        break
                    except OSError:
                        await anyio.sleep(0.05)
            yield store
        finally:
            process.kill()
            process.wait()
