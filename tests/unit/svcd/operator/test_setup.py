"""`svcd init`: its questions, proposals and files. Existing files are never overwritten."""

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from common.daemon.process import Fatal
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import PrometheusSettings
from svcd.backends.servers import ServedModels
from svcd.backends.settings import OpenAISettings
from svcd.config import DaemonConfig, read_config
from svcd.operator.config_text import SetupOptions
from svcd.operator.discovery import ModelServer
from svcd.operator.market_lookup import ReportedMarket, read_market
from svcd.operator.setup import Dialogue, prompt_at_terminal, set_up
from tests.support.fakes.market import BOOK, GATEWAY, START, URL, Market

VLLM = ModelServer(
    "http://127.0.0.1:8000", ServedModels(("org/Text", "other"), "vLLM"), "http://127.0.0.1:8000/metrics"
)
OLLAMA = ModelServer("http://127.0.0.1:11434", ServedModels(("image:latest",), "Ollama"), None)


@attrs.define
class Terminal:
    """Answers a question by its flag. A list gives one answer after another. Without an entry, accepts the proposal."""

    answers: dict[str, str | list[str]]
    asked: dict[str, str | None] = attrs.field(factory=dict)
    said: list[str] = attrs.field(factory=list)

    def ask(self, question: str, proposed: str | None, flag: str) -> str:
        self.asked[flag] = proposed
        answer = self.answers.get(flag, proposed)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if answer is None:
            raise Fatal(f"{flag} must be given")
        return answer


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Market:
    market = Market(lambda: START, windows=[60, 600, 3600], floors={(1, 600): (70, 90), (1, 3600): (50, 1)})

    async def told(url: str) -> ReportedMarket:
        async with httpx.AsyncClient(transport=market.transport, base_url=url) as http:
            return await read_market(http)

    async def found(urls: Any = None) -> list[ModelServer]:
        return [each for each in (VLLM, OLLAMA) if urls is None or each.url in urls]

    monkeypatch.setattr("svcd.operator.setup._read_market", told)
    monkeypatch.setattr("svcd.operator.setup.find_local_servers", found)
    monkeypatch.setattr("svcd.operator.setup.find_servers", found)
    return market


Init = Callable[..., Terminal]


@pytest.fixture
def init(tmp_path: Path, market: Market) -> Init:
    def _init(answers: dict[str, Any] | None = None, password: str = "", **flags: Any) -> Terminal:
        terminal = Terminal({"--coordinator": URL, **(answers or {})})
        options = SetupOptions(config=tmp_path / "svcd.toml", **flags)
        set_up(options, terminal.ask, terminal.said.append, lambda: password)
        return terminal

    return _init


def read(folder: Path) -> DaemonConfig:
    return read_config(folder / "svcd.toml", {})


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def test_six_questions_whose_proposals_make_a_configuration(init: Init, tmp_path: Path) -> None:
    terminal = init()
    assert terminal.asked == {
        "--coordinator": None,
        "--server": f"{VLLM.url} {OLLAMA.url}",
        "--model": "demo/text=org/Text demo/image=image:latest",
        "--slots": "1",
        "--price-percent": "100",
        "--wallet": "new",
    }
    assert f"    {VLLM.url} serves org/Text, other" in terminal.said
    assert f"    {OLLAMA.url} serves image:latest" in terminal.said
    config = read(tmp_path)
    text, image = config.models
    assert (config.coordinator_url, config.gateways, config.addresses) == (URL, (GATEWAY,), BOOK)
    assert text.asks == {600: AskRates(70, 90), 3600: AskRates(50, 1)}  # the floors
    assert image.asks == {600: AskRates(100_000, 200_000), 3600: AskRates(100_000, 200_000)}  # no asks yet
    assert isinstance(text.backend, OpenAISettings)
    assert (text.backend.base_url, text.backend.models) == (VLLM.url, {"demo/text": "org/Text"})
    assert isinstance(text.load, PrometheusSettings)
    assert not isinstance(image.load, PrometheusSettings)
    keys = tmp_path / "credentials"
    assert [mode(keys), *(mode(keys / name) for name in ("wallet.key", "box.key"))] == ["700", "600", "600"]
    assert config.box is not None
    assert any(f"box key 0x{config.box.public.raw.hex()}" in line for line in terminal.said)
    assert any('demo/text "hello"' in line for line in terminal.said)


def test_flags_answer_every_question(init: Init, tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    own.write_text("11" * 32)
    book = tmp_path / "book.json"
    book.write_text(json.dumps(attrs.evolve(BOOK, deploy_block=9).as_json()))
    terminal = init(
        {},
        coordinator=URL,
        servers=(VLLM.url,),
        models=("demo/text=other",),
        price_percent=150,
        wallet=str(own),
        api="responses",
        slots=3,
        gateway="http://mine",
        addresses=book,
        rpc_url="http://node",
        state_directory=tmp_path / "jobs",
        metrics_port=1234,
    )
    assert terminal.asked == {}
    config = read(tmp_path)
    (model,) = config.models
    assert isinstance(model.backend, OpenAISettings)
    assert (model.backend.api, model.backend.models, model.slots) == ("responses", {"demo/text": "other"}, 3)
    assert model.asks == {600: AskRates(105, 135), 3600: AskRates(75, 2)}
    assert (config.gateways, config.rpc_url, config.metrics_port) == (("http://mine",), "http://node", 1234)
    assert isinstance(config.addresses, AddressBook)
    assert (config.addresses.deploy_block, config.state_directory) == (9, tmp_path / "jobs")
    assert config.wallet.address.hex() == "19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"
    assert not (tmp_path / "credentials" / "wallet.key").exists()


def test_slots_are_what_the_servers_run_at_a_time(init: Init, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = attrs.evolve(VLLM, parallel_requests=5)

    async def found() -> list[ModelServer]:
        return [server]

    monkeypatch.setattr("svcd.operator.setup.find_local_servers", found)
    init({"--model": "demo/text=org/Text demo/image=other"})
    assert [model.slots for model in read(tmp_path).models] == [2, 2]  # the models share the server


@pytest.mark.parametrize(
    ("flag", "answers", "said"),
    [
        ("--coordinator", ["market", URL, URL], "'market' must be an http"),
        ("--server", ["http://127.0.0.1:1", VLLM.url, VLLM.url], "no list of models at http://127.0.0.1:1"),
        ("--model", ["demo/none", "demo/text=other", "demo/text=other"], "the market has no model 'demo/none'"),
        ("--slots", ["some", "3", "3"], "'some': the number of jobs at a time must be a whole number"),
        ("--price-percent", ["cheap", "90", "90"], "'cheap': prices must be a percentage"),
        ("--wallet", ["/none/such", "new", "new"], "/none/such is not a file"),
    ],
)
def test_mistaken_answer_is_said_and_asked_again(
    flag: str, answers: list[str], said: str, init: Init, tmp_path: Path
) -> None:
    terminal = init({flag: [*answers]})
    assert [line for line in terminal.said if line.startswith(f"    {said}")]
    assert read(tmp_path).models


def test_wrong_proposal_is_not_proposed_again() -> None:
    terminal = Terminal({})

    def refuse(text: str) -> str:
        raise Fatal(f"{text} is wrong")

    with pytest.raises(Fatal, match="--wallet must be given"):
        Dialogue(terminal.ask, terminal.said.append).read_answer(None, "wallet", "new", "--wallet", refuse)
    assert terminal.said == ["    new is wrong"]


def test_nothing_that_is_there_is_overwritten(init: Init, tmp_path: Path) -> None:
    init()
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Fatal, match=r"svcd\.toml already exists"):
        init()
    (tmp_path / "svcd.toml").unlink()
    again = init()
    assert {path: path.read_bytes() for path in kept} == kept
    assert sum("kept" in line for line in again.said) == 2


def test_new_keystore_needs_its_password_to_be_read(init: Init, tmp_path: Path) -> None:
    terminal = init(wallet="keystore", password="open")
    assert any(
        f"put the keystore's password into {tmp_path / 'credentials' / 'wallet.password'}" in line
        for line in terminal.said
    )
    document = json.loads((tmp_path / "credentials" / "wallet.key").read_text())
    with pytest.raises(Fatal, match=r"keys.wallet_password names .*wallet\.password, which cannot be read"):
        read(tmp_path)
    (tmp_path / "credentials" / "wallet.password").write_text("open\n")
    assert read(tmp_path).wallet.address.hex() == document["address"].lower()


def test_only_model_of_a_market_and_a_server_belong_together(init: Init, market: Market, tmp_path: Path) -> None:
    market.models = {"demo/other": 4}
    assert init(servers=(OLLAMA.url,)).asked["--model"] == "demo/other=image:latest"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"coordinator": "market"}, "'market' must be an http:// or https:// address"),
        ({"models": ("demo/none",)}, "the market has no model 'demo/none'; it has demo/text, demo/image"),
        ({"models": ("demo/text=none",)}, "demo/text: no server has a model 'none'; the servers are vLLM at http"),
        ({"servers": ("http://127.0.0.1:1",)}, "no list of models at http://127.0.0.1:1: start the model server"),
        ({"wallet": "/none/such"}, "/none/such is not a file: the wallet must be `new`, `keystore` or the path"),
    ],
)
def test_impossible_answer_writes_no_configuration(
    flags: dict[str, Any], said: str, init: Init, tmp_path: Path
) -> None:
    with pytest.raises(Fatal, match=re.escape(said)):
        init(**flags)
    assert not (tmp_path / "svcd.toml").exists()


def test_market_that_tells_no_gateway_is_asked_for_one(init: Init, market: Market, tmp_path: Path) -> None:
    market.gateway = None
    assert init({"--gateway": "http://own"}).asked["--gateway"] is None
    assert read(tmp_path).gateways == ("http://own",)


def test_without_a_terminal_defaults_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert prompt_at_terminal("prices", "100", "--price-percent") == "100"
    with pytest.raises(Fatal, match="--coordinator must be given: there is no terminal to prompt at"):
        prompt_at_terminal("address", None, "--coordinator")


def test_terminal_is_asked_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["", " http://c "])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    assert prompt_at_terminal("address", None, "--coordinator") == "http://c"
