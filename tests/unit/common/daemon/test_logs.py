import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from common.daemon.logs import start_error_reporting
from common.daemon.process import Fatal

_DSN = "http://key@127.0.0.1:9/1"


class Kept(Transport):
    """Records the messages instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def kept() -> Iterator[Kept]:
    yield Kept()
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def test_failure_report_has_tags_and_no_variables(kept: Kept) -> None:
    report = start_error_reporting(_DSN, "staging", "1.2.3", kept)
    body = secrets.token_hex(16)
    try:
        raise RuntimeError("unexpected")
    except RuntimeError:
        report(None, "exception", {"event": "request failed", "exc_info": True, "body": body})
    (event,) = kept.events
    assert (event["environment"], event["release"]) == ("staging", "1.2.3")
    assert event["exception"]["values"][0]["value"] == "unexpected"
    assert body not in json.dumps(event, default=str)
    assert "request" not in event
    assert "user" not in event


def test_logs_below_error_are_not_reported(kept: Kept) -> None:
    report = start_error_reporting(_DSN, None, None, kept)
    report(None, "info", {"event": "serving", "exc_info": True})
    assert report(None, "error", {"event": "said"}) == {"event": "said"}
    assert kept.events == []


def test_missing_package_stops_the_boot_naming_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(Fatal, match=r"\[sentry\]"):
        start_error_reporting(_DSN, None, None)


def test_invalid_dsn_stops_the_boot() -> None:
    with pytest.raises(Fatal, match="SENTRY_DSN"):
        start_error_reporting("nowhere", None, None)


def test_log_that_cannot_be_written_does_not_raise() -> None:
    """The stream raises, as on a full disk."""
    program = """
import logging, structlog
from common.daemon.logs import set_up_logging
set_up_logging("info")
for number in range(1000):
    structlog.get_logger().info("written", number=number)
    logging.getLogger("library").warning("written")
print("alive")
"""
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert run.stdout == b"alive\n"
