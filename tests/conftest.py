import functools
import os
from pathlib import Path

import httpx._transports.default as _transports
import hypothesis
import pytest
from httpx import create_ssl_context

pytest_plugins = ("tests.skips",)

ROOT = Path(__file__).parents[1]

# The servers of the tests speak no TLS. asyncpg would ask for it first, and where a connection is given up at just that
# moment it leaves an exception behind that nobody awaits, which fails the test.
os.environ["PGSSLMODE"] = "disable"
# Each client of httpx reads the machine's certificates, though it speaks to our own servers: a tenth of many tests.
_transports.create_ssl_context = functools.cache(create_ssl_context)  # type: ignore[attr-defined]
# What tests write lies below this folder, as all else does that the checks make.
(ROOT / "build" / "tmp").mkdir(parents=True, exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(ROOT / "build" / "tmp"))
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "build" / "matplotlib"))

# Where CI is set, hypothesis tries the same examples each time. New ones find more, and it prints how to repeat one.
if "CI" in os.environ:
    hypothesis.settings.register_profile("new examples", hypothesis.settings.get_profile("ci"), derandomize=False)
    hypothesis.settings.load_profile("new examples")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests outside of svcd's folders run on asyncio, as the coordinator does."""
    return "asyncio"
