"""Tabs in a complete market: the SDK and the command line, also on a pseudo-terminal."""

import json
import os
import sys
from pathlib import Path

import pytest

from svc.client import Client
from svc.sync_client import SyncClient
from tests.e2e.svc.conftest import Market, Svc
from tests.support.pseudo_terminal import PseudoTerminal, cells

MODEL = "demo/text-small"


@pytest.fixture
def environment(market: Market, tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    return {**clean, **market.environment, "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


async def test_answers_of_a_tab_are_settled_once(environment: dict[str, str]) -> None:
    async with Client(environment=environment, on_first_use=lambda _: None) as client:
        async with client.tabs.open(MODEL) as tab:
            for number in range(3):
                stream = await tab.request({"input": f"tell me {number}"})
                words = [chunk async for chunk in stream]
                assert len(words) == 3
                assert (await stream.answer()).output == {"input": f"tell me {number}"}
        outcome = tab.outcome
        assert outcome is not None
        assert (outcome.requests, outcome.fault) == (3, None)
        assert outcome.charged == outcome.acknowledged > 0
        receipt = json.loads(await client.receipt(tab.id, transcript=True))
        assert receipt["end"]["completion_tok"] == str(outcome.charged)
        assert "tab" in receipt


def test_tab_without_await(environment: dict[str, str]) -> None:
    with SyncClient(environment=environment, on_first_use=lambda _: None) as client:
        with client.tabs.open(MODEL) as tab:
            stream = tab.request("two words")
            assert len(list(stream)) == 2
            assert stream.answer().output == {"input": "two words"}
        assert tab.outcome is not None
        assert tab.outcome.requests == 1


def test_chat_on_a_terminal_shows_costs_and_refund(environment: dict[str, str]) -> None:
    terminal = PseudoTerminal.start(
        [str(Path(sys.executable).with_name("svc")), "tab", "open", MODEL], environment, columns=80
    )
    terminal.wait_for(lambda shown: "> " in shown)
    terminal.type("why is the sky blue\n")
    terminal.wait_for(lambda shown: "so far]" in shown)
    terminal.type("and the sea\n")
    terminal.wait_for(lambda shown: shown.count("so far]") == 2)
    terminal.type("\x04")
    shown = terminal.end()
    assert shown.code == 0, shown.text
    assert "settled for 2 answers: paid" in shown.text.replace("\n", " ")
    assert "refunded" in shown.text
    assert "Traceback" not in shown.text
    assert all(cells(line) <= 80 for line in shown.lines if " " not in line or line.startswith("["))


def test_runs_share_an_open_tab(svc: Svc, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    first = svc("run", MODEL, "one", "--tab", "--json", **home)
    second = svc("run", MODEL, "two", "--tab", "--json", **home)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    answers = [json.loads(each.out) for each in (first, second)]
    assert [each["output"] for each in answers] == [{"input": "one"}, {"input": "two"}]
    assert answers[0]["job_id"] == answers[1]["job_id"]
    listed = json.loads(svc("tab", "list", "--json", **home).out)
    assert [each["job"] for each in listed["tabs"]] == [answers[0]["job_id"]]
    closed = svc("tab", "close", answers[0]["job_id"], "--json", **home)
    assert json.loads(closed.out)["requests"] == 2
    assert svc("tab", "close", answers[0]["job_id"], **home).code == 2


def test_conversation_from_a_pipe(svc: Svc, tmp_path: Path) -> None:
    ran = svc("tab", "open", MODEL, "--json", stdin="one two\nthree\n", XDG_CONFIG_HOME=str(tmp_path))
    assert ran.code == 0, ran.err
    *answers, outcome = [json.loads(line) for line in ran.out.splitlines()]
    assert [each["request"] for each in answers] == [1, 2]
    assert (outcome["requests"], outcome["fault"], outcome["status"]) == (2, None, "completed")
