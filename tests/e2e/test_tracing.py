"""One order through real daemons that export to a collector on loopback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.e2e.conftest import client_variables, launched
from tests.support.fakes.trace_collector import SeenSpan, TraceCollector

_SECONDS: Final = 60
_PROMPT: Final = "a prompt that only the provider may read"
# Every span of an order, as path from the client's span.
_ORDER: Final = "svc:request/coordinatord:request/coordinatord:submission"
_JOB: Final = f"{_ORDER}/svcd:poll"
PATHS: Final = [
    "svc:request",
    "svc:request/coordinatord:request",  # the probe
    "svc:request/coordinatord:request",  # the quote
    "svc:request/coordinatord:request",
    _ORDER,
    f"{_ORDER}/coordinatord:relay",
    f"{_ORDER}/coordinatord:relay/coordinatord:block",
    f"{_ORDER}/coordinatord:index",
    _JOB,
    *(f"{_JOB}/svcd:{stage}" for stage in ("claim", "open", "run", "seal", "settle")),
    *(
        f"{_JOB}/svcd:{stage}/coordinatord:request{below}"
        for stage in ("claim", "settle")
        for below in ("", "/coordinatord:relay", "/coordinatord:relay/coordinatord:block", "/coordinatord:index")
    ),
]
ATTRIBUTES: Final = {
    *("method", "route", "status", "job", "model", "model_id", "pending"),
    *("op", "state", "block", "tx", "first_block", "last_block"),
}


@attrs.frozen
class TracedMarket:
    collector: TraceCollector
    environment: dict[str, str]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TracedMarket]:
    with TraceCollector().serving() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        devnet = launched(tmp_path / "state", "--automine")
        with devnet.process:
            devnet.wait_up()
            yield TracedMarket(collector, {**os.environ, **client_variables(devnet.state)})
            assert devnet.end(signal.SIGTERM) == 0


def test_one_order_makes_one_trace(traced: TracedMarket) -> None:
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("svc")), "run", "demo/text-small", _PROMPT, "--final"],
        env=traced.environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr

    spans = traced.collector.wait_for(_SECONDS, lambda seen: len(of_order(seen)) >= len(PATHS))

    assert paths(of_order(spans)) == sorted(PATHS)
    assert {name for span in spans for name in span.attributes} <= ATTRIBUTES
    everything = b"".join(traced.collector.bodies)
    secrets = [_PROMPT, "svc_sess_", traced.environment["SVC_WALLET_KEY"].removeprefix("0x")]
    assert [secret for secret in secrets if secret.encode() in everything] == []


def of_order(seen: list[SeenSpan]) -> list[SeenSpan]:
    """Return the spans of the trace that the client began."""
    begun = {span.trace_id for span in seen if span.service == "svc"}
    return [span for span in seen if span.trace_id in begun]


def paths(spans: list[SeenSpan]) -> list[str]:
    known = {span.span_id: span for span in spans}

    def path(span: SeenSpan) -> str:
        own = f"{span.service}:{span.name}"
        return f"{path(known[span.parent_id])}/{own}" if span.parent_id else own

    return sorted(path(span) for span in spans)
