"""Tabs with a file in the client's state folder.

Threads write the files, so virtual time runs at a fixed rate. A clock that jumps would let timeouts
pass during a write.
"""

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from common.tab.messages import TabRequest
from svc.errors import NoProvider, OrderRefused, TabEnded, TabFaulty
from tests.unit.svc.fake_coordinator import until
from tests.unit.svc.tabs.market import TabMarket, TabProvider, ask, question


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(rate=20)}


async def test_overcharge_is_reported_and_remembered(tmp_path: Path) -> None:
    def overcharge(provider: TabProvider) -> None:
        provider.overcharge = 5

    market, environment = TabMarket(setup=overcharge), {"XDG_CONFIG_HOME": str(tmp_path)}
    async with market.client(environment) as client:
        with pytest.raises(TabFaulty, match="svc receipt") as raised:
            async with client.tabs.open("demo/chat") as tab:
                await ask(tab, "one")
        assert raised.value.code == "overcharged"
    async with market.client(environment) as client:
        with pytest.raises(NoProvider, match="were charged"):
            async with client.tabs.open("demo/chat", provider=7):
                pass


async def test_kept_tab_is_continued_by_another_client(tmp_path: Path) -> None:
    market, environment = TabMarket(), {"XDG_CONFIG_HOME": str(tmp_path)}
    async with market.client(environment) as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        await until(lambda: not market.tab.waiting)
        tab.keep()
    (path,) = (tmp_path / "svc" / "tabs").glob("0x*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    async with market.client(environment) as client:
        (listed,) = await client.tabs.list()
        assert listed.file.id == tab.id
        async with client.tabs.resume(tab.id) as again:
            with pytest.raises(OrderRefused) as raised:
                await client.tabs.close(tab.id)
            assert raised.value.code == "in_use"
            await ask(again, "two")
            await until(lambda: not market.tab.waiting)
            again.keep()
        outcome = await client.tabs.close(tab.id)
        assert await client.tabs.list() == ()
    assert (outcome.requests, outcome.fault) == (2, None)
    assert len(set(market.tab.runs)) == 2
    assert not path.exists()


async def test_interrupted_tab_can_only_be_closed(tmp_path: Path) -> None:
    """The process ended between an answer and its acknowledgement, so no process can check that answer."""
    market, environment = TabMarket(), {"XDG_CONFIG_HOME": str(tmp_path)}
    async with market.client(environment) as client, client.tabs.open("demo/chat") as tab:
        await ask(tab, "one")
        await until(lambda: not market.tab.waiting)
        tab.keep()
    market.tab.run(TabRequest(70, question("lost"), market.tab.voucher))  # type: ignore[arg-type] # it has one
    async with market.client(environment) as client, client.tabs.resume(tab.id) as again:
        with pytest.raises(TabEnded) as raised:
            await ask(again, "two")
        assert raised.value.code == "tab_stuck"
    assert again.outcome is not None
    assert (again.outcome.requests, again.outcome.fault) == (1, None)
