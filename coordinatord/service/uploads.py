"""Uploads that submissions and settles may refer to by content id."""

from typing import Protocol

import attrs


@attrs.frozen(slots=True)
class Upload:
    """A stored upload; `commitment` is a container's `c`, computed while it came in."""

    cid: str
    commitment: bytes | None


class Uploads(Protocol):
    """Finds an upload that is still live, by its owner and content id."""

    async def find_input(self, owner: bytes, cid: str) -> Upload | None: ...
    async def find_result(self, owner: bytes, cid: str) -> Upload | None: ...
    async def attach(self, upload: Upload) -> None: ...


class NoUploads:
    """A coordinator without the file routes: nobody has uploaded anything, so no content id names an upload."""

    async def find_input(self, owner: bytes, cid: str) -> Upload | None:
        return None

    async def find_result(self, owner: bytes, cid: str) -> Upload | None:
        return None

    async def attach(self, upload: Upload) -> None:
        raise AssertionError("there is no upload to attach")
