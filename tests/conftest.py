import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests outside of svcd's folders run on asyncio, as the coordinator does."""
    return "asyncio"
