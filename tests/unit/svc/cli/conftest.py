"""The command line in a market of one fake coordinator."""

import shlex
from typing import Any

import pytest

from svc.cli.main import main
from svc.client import Client
from tests.unit.svc.cli.market import CIPHER, FakeMarket, Svc


@pytest.fixture
def market() -> FakeMarket:
    return FakeMarket()


@pytest.fixture
def svc(market: FakeMarket, monkeypatch: pytest.MonkeyPatch) -> Svc:
    """Run a command line in the market, and return its exit code."""

    def client(base_url: str | None, **given: Any) -> Client:
        del given["environment"]
        return market.coordinator.client(**given, wallet_key=None, cipher_key=CIPHER)

    monkeypatch.setattr("svc.client.Client", client)
    for name in ("SVC_WALLET_KEY_FILE", "SVC_PROFILE", "SVC_RPC_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_CONFIG", "")
    monkeypatch.setenv("SVC_WALLET_KEY", "0x" + "00" * 31 + "01")
    return lambda line: main(shlex.split(line))
