import pytest

from coordinatord.market.node import RetryingProvider


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryingProvider._call_with_retries.retry, "sleep", lambda _: None)
