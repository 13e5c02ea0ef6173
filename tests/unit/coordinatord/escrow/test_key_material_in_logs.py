import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from common.daemon.logs import set_up_logging
from coordinatord.api.escrow.keys import KeyPair

SECRET = bytes(range(100, 132))


@pytest.fixture
def logging_set_back() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.usefixtures("logging_set_back")
def test_failure_while_a_secret_is_at_hand_is_logged_without_it(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    set_up_logging("debug")

    def fail(secret: bytearray, key: KeyPair) -> None:
        raise RuntimeError(f"{key} does not work")

    try:
        fail(bytearray(SECRET), KeyPair(bytearray(SECRET)))
    except RuntimeError:
        structlog.get_logger("test").exception("request failed")
    logged = capsys.readouterr().err
    assert "does not work" in logged
    assert SECRET.hex() not in logged
    assert repr(SECRET)[2:-1] not in logged
