"""`svc watch`: panes in a pipe, the screen of a terminal, and the keys that switch it."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from io import StringIO
from typing import Any

import anyio
import pytest

from svc.cli import key_presses
from svc.cli.commands import watch
from svc.cli.drawing import Screen, Table
from svc.cli.exit_codes import ExitCode
from svc.cli.output import Output
from svc.errors import ApiError
from tests.unit.svc.cli.market import FakeMarket, Svc
from tests.unit.svc.cli.test_account import row
from tests.unit.svc.fake_coordinator import Answer, Dropped, failing, progress, settle

Said = pytest.CaptureFixture[str]

READY = {"ready": True, "cursor": "45", "head_block": "46", "reason": "ready", "lag": "1"}
MODEL = {**{"object": "model", "id": "demo/text", "owned_by": "us"}, "svc": {"model_id": "1", "enabled": True}}
PROVIDER = {
    **{"provider_id": "7", "operator": "0x" + "07" * 20, "box_key": None, "evidence": None, "listed": True},
    **{"reputation": "900", "allow_all_models": True, "allowed_models": [], "capacity": "4", "active_jobs": "3"},
    "requested": "4",
}


def page(name: str, *rows: dict[str, Any]) -> Answer:
    return Answer(200, {name: list(rows), "as_of_block": "5"})


@pytest.fixture(autouse=True)
def routes(market: FakeMarket) -> None:
    for route, answer in {
        "GET /readyz": Answer(200, READY),
        "GET /v1/models": page("data", MODEL),
        "GET /evm/jobs": page("jobs", row(2, 1), row(1, 2, 1)),
        "GET /evm/asks": page(
            "asks", {**dict.fromkeys(("model_id", "rate_in", "rate_out"), "1"), "provider_id": "7", "sla": "3600"}
        ),
        "GET /evm/providers": page("providers", PROVIDER),
    }.items():
        market.coordinator.tell(route, answer)


def test_pipe_gets_the_book_once_with_whole_ids(svc: Svc, capsys: Said) -> None:
    assert svc("watch") == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["0x" + f"{2:064x}", "demo/text", "in_progress"],
        ["0x" + f"{1:064x}", "demo/text", "completed"],
    ]


@pytest.mark.parametrize(
    ("pane", "told"),
    [
        ("models", "demo/text\tyes\t0.000001\t0.000002\t1\t1h, 24h"),
        ("providers", "7\t0x" + "07" * 20 + "\tyes\t900\t3/4\tall\tno\t—\t—"),
        ("market", "index\tready at block 45; blocks behind the chain: 1"),
    ],
)
def test_pane_that_is_asked_for_is_written(svc: Svc, capsys: Said, pane: str, told: str) -> None:
    assert svc(f"watch --pane {pane}") == ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[0] == told


def test_json_is_in_the_words_of_the_interface(svc: Svc, capsys: Said) -> None:
    assert svc("watch --json") == ExitCode.DONE
    assert [each["provider_id"] for each in json.loads(capsys.readouterr().out)] == [7, 7]


def test_jobs_without_a_wallet_say_what_to_set(svc: Svc, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SVC_WALLET_KEY")
    assert svc("watch --pane jobs") == ExitCode.DONE
    assert "SVC_WALLET_KEY_FILE" in capsys.readouterr().out


async def test_keys_switch_panes_and_outages_are_waited_out(
    market: FakeMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Screen] = []
    seen = anyio.Event()

    def draw(screen: Screen) -> None:
        nonlocal seen
        drawn.append(screen)
        seen.set()
        seen = anyio.Event()

    async def until(status: str, pane: str) -> None:
        with anyio.fail_after(10):
            while not (drawn and status in drawn[-1].status and drawn[-1].panes[drawn[-1].pane_index] == pane):
                await seen.wait()

    async def keys() -> AsyncGenerator[str, None]:
        await until("live, block 45", "book")
        yield "\t"
        await until("live, block 45", "jobs")
        market.coordinator.tell("GET /readyz", *[Dropped()] * 30, Answer(200, READY))
        yield "5"
        await until("reconnecting", "market")
        await until("live, block 45", "market")
        yield "\x1b[D"
        await until("live, block 45", "providers")
        yield "q"

    monkeypatch.setattr(watch, "read_key_presses", keys)
    async with market.coordinator.client() as client:
        await watch._WatchScreen(client, draw, 0.01, 0).run()
    table = drawn[-1].table
    assert table is not None
    assert table.rows[0][:3] == ("7", "yes", "3/4")


async def test_own_jobs_are_shown_as_they_stand_before_their_blocks(market: FakeMarket) -> None:
    going_on = f"0x{2:064x}"
    told = progress(going_on, "completed", settle(rests_on="broadcast"))
    market.coordinator.tell(f"GET /v1/jobs/{going_on}/progress", Answer(200, told))
    async with market.coordinator.client() as client:
        own, book = [(await watch.load_pane(client, pane, brief=True)).table for pane in ("jobs", "book")]
    assert [each[2] for each in own.rows] == ["completed (broadcast)", "completed"]
    assert [each[2] for each in book.rows] == ["in_progress", "completed"]


async def test_reported_change_is_shown_before_the_next_poll(
    market: FakeMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = b'retry: 10\nid: 1\n\nid: 2\nevent: claimed\ndata: {"status": "in_progress"}\n\n'
    stream = Answer(200, told, {"content-type": "text/event-stream"})
    market.coordinator.tell("GET /evm/events", stream)
    market.coordinator.tell("GET /evm/jobs", page("jobs", row(1, 0)), page("jobs", row(1, 1)))
    claimed = anyio.Event()

    def draw(screen: Screen) -> None:
        if screen.table is not None and screen.table.rows[0][2] == "in_progress":
            claimed.set()

    async def keys() -> AsyncGenerator[str, None]:
        with anyio.fail_after(10):
            await claimed.wait()
        yield "q"

    monkeypatch.setattr(watch, "read_key_presses", keys)
    async with market.coordinator.client() as client:
        await watch._WatchScreen(client, draw, 3600.0, 0).run()
    assert market.coordinator.to("GET /evm/events")[0].query == {}


@pytest.mark.parametrize("pane", watch.PANES)
async def test_watch_reads_its_pane_for_a_minute(
    market: FakeMarket, monkeypatch: pytest.MonkeyPatch, pane: str
) -> None:
    screens: list[Screen] = []

    async def keys() -> AsyncGenerator[str, None]:
        await anyio.sleep(60)  # virtual seconds
        yield "q"

    monkeypatch.setattr(watch, "read_key_presses", keys)
    async with market.coordinator.client() as client:
        await watch._WatchScreen(client, screens.append, 2.0, watch.PANES.index(pane)).run()
    assert len(screens) == 30
    assert {screen.status for screen in screens} == {"live, block 45"}


async def test_watch_ends_with_the_coordinators_refusal(market: FakeMarket, monkeypatch: pytest.MonkeyPatch) -> None:
    market.coordinator.tell("GET /evm/jobs", failing(400, "invalid_request_error"))
    monkeypatch.setattr(watch, "read_key_presses", _no_keys)
    async with market.coordinator.client() as client:
        with pytest.raises(ApiError):
            await watch._WatchScreen(client, lambda _: None, 2.0, 0).run()


async def _no_keys() -> AsyncGenerator[str, None]:
    await anyio.sleep_forever()
    yield "q"


@pytest.mark.timeout(30)
async def test_keys_are_read_without_echo_and_terminal_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    import termios  # noqa: PLC0415 - there is none on Windows

    controller, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        keys = key_presses.read_key_presses()
        pressed: list[str] = []

        async def press(key: bytes) -> None:
            async def read() -> None:
                pressed.append(await anext(keys))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                os.write(controller, key)  # in line mode, a terminal would withhold an incomplete line

        await press(b"\t")
        await press(b"\x1b[C")
        assert pressed == ["\t", "\x1b[C"]
        assert not termios.tcgetattr(terminal)[3] & termios.ECHO
        await keys.aclose()
        assert termios.tcgetattr(terminal) == before
    os.close(controller)


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", [True, False])
def test_screen_fits_and_escapes_hostile_names(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = _Terminal()
    output = Output(as_json=False, quiet=False, out=out, err=StringIO())
    rows = [(f"job {n}", "\x1b]0;owned\x07[red]name") for n in range(40)]
    with output.full_screen() as draw:
        draw(Screen(("book", "jobs"), 0, "live, block 45", Table(("job", "model"), rows), "q quit"))
    shown = out.getvalue()
    assert "\x1b]0;" not in shown
    assert "[red]name" in shown
    assert "live, block 45" in shown
    assert "job 6" in shown
    assert "job 7" not in shown  # of twelve lines, the heading takes two, the keys two, and the names one
    assert "q quit" in shown
    assert shown.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in shown  # the terminal is restored
