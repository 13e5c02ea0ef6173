"""Webhooks by the client and by its command line."""

import time
from pathlib import Path
from typing import Any

import pytest

from common.refusal import Refused
from common.webhooks import read_secret, signed_headers
from svc.cli.exit_codes import ExitCode
from svc.webhooks import verify_webhook
from tests.unit.svc.cli.market import FakeMarket, Svc
from tests.unit.svc.fake_coordinator import Answer

ID, SECRET = "whk_0123456789abcdef01234567", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENDPOINT: dict[str, Any] = {
    **{"id": ID, "object": "webhook", "url": "https://hooks.example.org/", "events": ["job.settled"]},
    **{"created_at": 1800000000, "status": "disabled", "disabled_because": "gone", "disabled_at": 1800000050},
    **{"failing_since": None, "last_attempt_at": 1800000031, "last_status": 410},
    **{"waiting": 0, "delivered": 7, "dropped": 1},
}


@pytest.fixture(autouse=True)
def signed_in(market: FakeMarket) -> None:
    told = market.coordinator.tell
    told("GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 1, "chain_id": 31337}))
    told("POST /auth/session", Answer(200, {"token": "t", "expires_at": int(time.time()) + 5000}))
    told("POST /v1/webhooks", Answer(200, {**ENDPOINT, "secret": SECRET}))
    told("GET /v1/webhooks", Answer(200, {"object": "list", "data": [ENDPOINT]}))
    told(f"DELETE /v1/webhooks/{ID}", Answer(200, {"id": ID, "object": "webhook.removed"}))
    told(f"POST /v1/webhooks/{ID}/test", Answer(200, {"id": "msg_1", "object": "webhook.test"}))


def test_endpoint_is_added_and_its_secret_shown(
    market: FakeMarket, svc: Svc, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert svc(f"webhooks add https://hooks.example.org/ job.settled --secret-file {file}") == ExitCode.DONE
    (asked,) = market.coordinator.to("POST /v1/webhooks")
    assert asked.body == {"url": "https://hooks.example.org/", "events": ["job.settled"], "secret": SECRET}
    assert asked.headers["authorization"] == "Bearer t"
    assert f"secret\t{SECRET}" in capsys.readouterr().out
    assert svc("webhooks add https://hooks.example.org/ job.eaten") == ExitCode.USAGE


def test_endpoints_are_listed_tested_and_removed(
    market: FakeMarket, svc: Svc, capsys: pytest.CaptureFixture[str]
) -> None:
    assert svc("webhooks list") == ExitCode.DONE
    assert capsys.readouterr().out.startswith(f"{ID}\tdisabled: gone\t410\t7\t0\t1\t")
    assert svc(f"webhooks test {ID}") == ExitCode.DONE
    assert capsys.readouterr().out == "msg_1\n"
    assert svc(f"webhooks remove {ID}") == ExitCode.DONE
    assert len(market.coordinator.to(f"DELETE /v1/webhooks/{ID}")) == 1


def test_message_is_verified_by_the_clock_unless_a_time_is_given() -> None:
    headers = signed_headers(read_secret(SECRET), "msg_1", int(time.time()), b"{}")
    assert verify_webhook(SECRET, headers, b"{}") == "msg_1"
    with pytest.raises(Refused):
        verify_webhook(SECRET, headers, b"{}", time.time() + 600)
