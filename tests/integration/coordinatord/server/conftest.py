import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Use the coordinator's event loop, whose transports differ from asyncio's."""
    return "asyncio", {"use_uvloop": True}
