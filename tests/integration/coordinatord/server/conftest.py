import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the coordinator runs on: its transports differ from asyncio's own."""
    return "asyncio", {"use_uvloop": True}
