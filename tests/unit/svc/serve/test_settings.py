"""Settings of `svc serve`, its keys, and its spending limits."""

from pathlib import Path

import pytest

from common.refusal import Refused
from common.settings.reader import settings_of
from svc.core.money import Token
from svc.serve.budgets import DAY_S, Budgets
from svc.serve.keys import Keys, read_or_create_key
from svc.serve.ledger import Ledger, SpendEntry
from svc.serve.problems import Problem
from svc.serve.serving import list_risks
from svc.serve.settings import (
    BudgetSettings,
    BuyingSettings,
    HttpServerSettings,
    KeySettings,
    ModelSettings,
    ServeSettings,
    read_settings,
)

EXAMPLE = Path(__file__).parents[4] / "config" / "svc-serve.toml.example"
TOKEN = Token("Dev Dollar", 6, decimals_verified=True)


def read(folder: Path, text: str) -> ServeSettings:
    path = folder / "serve.toml"
    path.write_text(text)
    path.chmod(0o600)
    return read_settings(path, {})


_TABLES = {
    "": ServeSettings,
    "server": HttpServerSettings,
    "budget": BudgetSettings,
    "buying": BuyingSettings,
    "keys.notes": KeySettings,
    "models.gpt-4o-mini": ModelSettings,
}


def test_example_holds_every_setting_with_its_default(tmp_path: Path) -> None:
    assert read(tmp_path, EXAMPLE.read_text()) == ServeSettings()
    shown = [line.removeprefix("# ") for line in EXAMPLE.read_text().splitlines()]
    with_optional = "\n".join(line for line in shown if line.startswith("[") or " = " in line)
    settings = read(tmp_path, with_optional.replace("open_orders = false", "open_orders = true"))
    assert (settings.keys["notes"].per_day, settings.models["gpt-4o-mini"].max_output_tokens) == (2_000_000, 1_024)
    documented: dict[str, set[str]] = {"": set()}
    for line in with_optional.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
            documented[table] = set()
        else:
            documented[list(documented)[-1]].add(line.partition(" = ")[0])
    assert documented == {
        table: {each.name for each in settings_of(cls)} - {name.partition(".")[0] for name in _TABLES if not table}
        for table, cls in _TABLES.items()
    }
    assert sum(map(len, documented.values())) <= 31


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nport = 70000", "port"),
        ("[server]\nprot = 1", "prot"),
        ('[server]\nhost = "0.0.0.0"', "server.host"),
        ('[server]\nhost = "0.0.0.0"\n[keys.a]\nfile = "k"', "server.host"),
        ('[server]\ntls_key = "k"', "server.tls_key"),
        ("[buying]\nrate_in = 5", "buying"),
        ('[buying]\nwindow = "soon"', "buying.window"),
        ("[budget]\nper_day = 0", "per_day"),
        ('[keys."a b"]\nfile = "k"', "keys"),
        ("nonsense", "serve.toml"),
        pytest.param("[server]\nport = " + "9" * 5_000, "serve.toml", id="an integer of thousands of digits"),
        pytest.param("a = " + "[" * 60_000, "nested too deeply", id="arrays without an end"),
    ],
)
def test_setting_that_cannot_be_is_refused_by_its_name(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        read(tmp_path, text)
    assert named in f"{refused.value.param} {refused.value.message}"


def test_settings_that_others_could_have_written_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(Refused, match="writable by you alone"):
        read_settings(path, {})


def test_risks_are_printed_at_the_start(tmp_path: Path) -> None:
    server, buying = 'host = "0.0.0.0"\ninsecure_http = true', "rate_in = 1\nopen_orders = true"
    text = f'[server]\n{server}\n[keys.a]\nfile = "k"\n[buying]\n{buying}'
    told = "\n".join(list_risks(read(tmp_path, text)))
    assert "reachable from other machines" in told
    assert "plain http" in told
    assert "open orders" in told
    assert list_risks(ServeSettings()) == []


def test_key_is_made_once_and_is_the_users_alone(tmp_path: Path) -> None:
    assert read_or_create_key(tmp_path / "state") == read_or_create_key(tmp_path / "state")
    assert (tmp_path / "state" / "serve.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("texts", [("short",), ("sk-0123456789abcdef 1",), ("sk-0123456789abcdef",) * 2])
def test_key_that_is_no_key_or_is_anothers_is_refused(texts: tuple[str, ...], tmp_path: Path) -> None:
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_text(text)
    keys = {f"k{number}": KeySettings(file=str(tmp_path / str(number))) for number in range(len(texts))}
    with pytest.raises(Refused):
        Keys.load(ServeSettings(keys=keys), tmp_path)


def job(at: float, amount: int, cost: int | None = None, key: str = "default") -> SpendEntry:
    return SpendEntry(
        at, key, "chat", "m", "m", f"0x{at:064.0f}", 7, amount, cost, "posting" if cost is None else "done"
    )


def test_budget_counts_authorised_until_the_cost_is_known() -> None:
    budgets = Budgets.from_settings(ServeSettings(budget=BudgetSettings(per_day=100)), TOKEN, [])
    budgets.reserve("default", "a", 80, 0)
    with pytest.raises(Problem) as refused:
        budgets.reserve("default", "b", 30, 1)
    assert (refused.value.status, refused.value.code, "20 are left" in refused.value.message) == (
        429,
        "insufficient_quota",
        True,
    )
    budgets.settle("a", 10, 2)
    budgets.reserve("default", "b", 90, 3)
    with pytest.raises(Problem):
        budgets.reserve("default", "c", 1, DAY_S - 1)
    budgets.reserve("default", "c", 10, DAY_S + 1)  # the first reservation is older than a day


def test_budget_includes_spending_before_the_start() -> None:
    settings = ServeSettings(budget=BudgetSettings(per_hour=50, per_day=100))
    budgets = Budgets.from_settings(settings, TOKEN, [job(0, 60, 40), job(DAY_S - 100, 30)])
    with pytest.raises(Problem, match="an hour"):
        budgets.reserve("default", "c", 21, DAY_S - 50)
    budgets.reserve("default", "c", 20, DAY_S - 50)


def test_reposted_batch_counts_once() -> None:
    budgets = Budgets.from_settings(ServeSettings(budget=BudgetSettings(per_day=100)), TOKEN, [job(0, 60)])
    batch = job(0, 60).job_id
    budgets.reserve("default", batch, 90, 10)  # its own 60 from before a restart do not count against it
    with pytest.raises(Problem):
        budgets.reserve("default", "b", 11, 20)
    budgets.settle(batch, 0, 30)
    budgets.reserve("default", batch, 50, 40)
    budgets.settle(batch, 40, 50)
    with pytest.raises(Problem):
        budgets.reserve("default", "b", 61, DAY_S)
    with pytest.raises(Problem, match="100 are left"):  # and no more than the limit, after a day
        budgets.reserve("default", "b", 101, DAY_S + 60)


def test_budget_counts_all_that_an_open_tab_may_cost() -> None:
    keys = {"a": KeySettings(file="a", per_hour=100), "b": KeySettings(file="b", per_hour=30)}
    budgets = Budgets.from_settings(ServeSettings(budget=BudgetSettings(per_hour=100), keys=keys), TOKEN, [])
    budgets.reserve_tab("a", "tab", 60, 0)
    budgets.reserve("b", "tab/1", 20, 1)
    assert (budgets.remaining_amount("a", 1), budgets.remaining_amount("b", 1)) == (40, 10)
    with pytest.raises(Problem, match="10 are left of"):
        budgets.reserve("b", "tab/2", 11, 2)
    budgets.settle("tab/1", 5, 3)
    assert (budgets.remaining_amount("a", 3), budgets.remaining_amount("b", 3)) == (40, 25)
    with pytest.raises(Problem, match="40 are left of"):
        budgets.reserve("a", "job", 41, 4)
    budgets.settle("tab", 8, 5)  # the relay charge
    assert (budgets.remaining_amount("a", 5), budgets.remaining_amount("b", 5)) == (87, 25)
    budgets.settle("tab/1", 0, 6)  # the settled tab does not get it
    assert budgets.remaining_amount("a", 6) == 92


def test_budget_counts_tabs_that_were_open_at_the_start() -> None:
    def entry(at: float, kind: str, job_id: str, amount: int, cost: int | None) -> SpendEntry:
        return SpendEntry(at, "default", kind, "m", "m", job_id, 7, amount, cost, "posting" if cost is None else "done")

    settled = [entry(0, "tab", "old", 60, 5), entry(1, "chat", "old/1", 20, 10)]
    running = [entry(2, "tab", "new", 50, None), entry(3, "chat", "new/1", 20, 10), entry(4, "chat", "new/2", 9, None)]
    budgets = Budgets.from_settings(ServeSettings(budget=BudgetSettings(per_day=100)), TOKEN, [*settled, *running])
    assert budgets.remaining_amount("default", 5) == 100 - 15 - 50


def test_job_that_settles_after_its_window_frees_nothing_twice() -> None:
    budgets = Budgets.from_settings(ServeSettings(budget=BudgetSettings(per_hour=50)), TOKEN, [])
    budgets.reserve("default", "a", 50, 0)
    budgets.reserve("default", "b", 50, 4_000)
    budgets.settle("a", 0, 4_001)
    with pytest.raises(Problem):
        budgets.reserve("default", "c", 1, 4_002)


def test_default_daily_budget_is_ten_tokens() -> None:
    assert Budgets.from_settings(ServeSettings(), TOKEN, []).descriptions == [
        "10 Dev Dollar (10000000 base units) a day, all keys together"
    ]
    unvouched = Token("Odd", 18, decimals_verified=False)
    assert "(10000000 base units)" in Budgets.from_settings(ServeSettings(), unvouched, []).descriptions[0]


def test_two_servers_cannot_have_one_ledger(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path)
    with pytest.raises(Refused, match="another svc serve"):
        Ledger.open(tmp_path)
    first.close()
    Ledger.open(tmp_path).close()


def test_ledger_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nothing was bought there"):
        Ledger.open_read_only(tmp_path)
