import functools
import os
from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx._transports.default as _transports
import hypothesis
import pytest
from httpx import create_ssl_context

from common.tracing import spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytest_plugins = ("tests.support.skips",)

ROOT = Path(__file__).parents[1]

# The test servers have no TLS. asyncpg would try TLS first, and a connection that is cancelled at that moment leaves an
# unawaited exception, which fails the test.
os.environ["PGSSLMODE"] = "disable"
# Every httpx client loads the machine's certificates, which takes a tenth of the time of many tests. The test servers
# need none.
_transports.create_ssl_context = functools.cache(create_ssl_context)  # type: ignore[attr-defined]
# All tools of the project write below this folder.
(ROOT / "build" / "tmp").mkdir(parents=True, exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(ROOT / "build" / "tmp"))
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "build" / "matplotlib"))

# In CI, hypothesis uses fixed examples. Elsewhere it tries new ones, and prints how to repeat a failure.
if "CI" in os.environ:
    hypothesis.settings.register_profile("new examples", hypothesis.settings.get_profile("ci"), derandomize=False)
    hypothesis.settings.load_profile("new examples")


@pytest.fixture
def made_spans() -> Iterator["InMemorySpanExporter"]:
    """Switch tracing on in this process. Return the spans that are made."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - most tests run without
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use_provider(provider)
    yield exporter
    spans.use_provider(None)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: Any) -> None:
    """Run each async test on anyio's backend, if it is not marked for trio."""
    if not collector.istestfunction(obj, name):
        return
    function = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
    if iscoroutinefunction(function) and not any(mark.name == "trio" for mark in marks):
        pytest.mark.anyio(obj)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests that are not marked for trio run on asyncio, like the coordinator."""
    return "asyncio"
