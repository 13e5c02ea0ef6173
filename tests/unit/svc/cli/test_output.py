import json
import os
from collections import Counter
from io import StringIO
from pathlib import Path

import click
import pytest

from svc import errors
from svc.cli.destinations import open_output
from svc.cli.drawing import Table
from svc.cli.exit_codes import ExitCode
from svc.cli.failures import error_json, exit_code_for, hint_for
from svc.cli.output import NextStep, Output
from svc.errors import SvcError
from tests.support.pseudo_terminal import Shown, cells

_TABLE = Table(("name", "price"), [("a\tb\nc", "1"), ("[bold]d[/]", None)], right_aligned=frozenset({"price"}))
_DATA = [{"name": "a\tb\nc", "price": "1"}]


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _output(out: StringIO, err: StringIO, *, as_json: bool = False, quiet: bool = False) -> Output:
    return Output(as_json=as_json, quiet=quiet, out=out, err=err)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return _Terminal()


def test_piped_table_has_one_line_per_row() -> None:
    out = StringIO()
    _output(out, StringIO()).show_table(_TABLE, _DATA)
    assert out.getvalue() == "a b c\t1\n[bold]d[/]\t—\n"


def test_table_on_a_terminal_has_a_head_and_reads_no_markup(terminal: _Terminal) -> None:
    _output(terminal, StringIO()).show_table(_TABLE, _DATA)
    shown = terminal.getvalue()
    assert "name" in shown
    assert "[bold]d[/]" in shown
    assert "a b c" in shown


_WIDE = {
    "text shrinks": Table(
        ("model", "window", "provider", "rate in", "rate out", "settled", "median"),
        [("meta-llama/Llama-3.3-70B-Instruct", "24h", "123", "1000000000", "2000000000", "120/1000", "23 h 59 min")]
        * 2,
        frozenset({"provider", "rate in", "rate out", "settled", "median"}),
    ),
    "ids beside the rest": Table(
        ("job", "model", "status", "left", "rate in", "units"),
        [("0x" + "ab" * 32, "meta-llama/Llama-3.3-70B-Instruct", "in_progress", "23 h 59 min", "1000000", "5/4096")]
        * 2,
        frozenset({"left", "rate in", "units"}),
        frozenset({"job"}),
    ),
    "far too wide": Table(
        ("id", "url", "delivered", "waiting", "dropped", "last attempt", "events"),
        [("whk_1", "https://hooks.example.org/" + "a/" * 20, "1" * 20, "2" * 20, "3" * 20, "never", "job.settled")] * 2,
        frozenset({"delivered", "waiting", "dropped"}),
        frozenset({"id", "url"}),
    ),
    "double-width letters": Table(("model", "note"), [("模型" * 30, "言語 " * 20)]),
}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", _WIDE)
def test_table_fits_its_terminal(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    table = _WIDE[name]
    _output(terminal, StringIO()).show_table(table, [])
    shown = Shown(0, terminal.getvalue())
    assert max(map(cells, shown.lines)) <= columns
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            if column in table.right_aligned | table.never_cut:
                assert (cell or "") in shown.text
    letters = Counter("".join(shown.text.split()))
    assert not Counter("".join("".join(cell or "" for cell in row) for row in table.rows).replace(" ", "")) - letters


def test_row_below_its_id_stays_in_its_columns(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    table = _WIDE["ids beside the rest"]
    _output(terminal, StringIO()).show_table(table, [])
    lines = [line for line in Shown(0, terminal.getvalue()).lines if line]
    outside = [line.strip() for line in lines if not line.startswith("  ")]
    assert outside == ["job", *(row[0] for row in table.rows)]
    ends = {line.index(number) + len(number) for line in lines for number in ("rate in", "1000000") if number in line}
    assert len(ends) == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_facts_fit_their_terminal(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    key = "fc" * 32
    facts = [("open orders can be opened by", "the provider that claims it, " * 5), ("key of the market's escrow", key)]
    _output(terminal, StringIO()).show_facts(facts, {})
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.split()[-1] == key for line in lines)


def test_bar_of_a_stage_never_runs_backwards(terminal: _Terminal) -> None:
    with _output(StringIO(), terminal).progress_bar() as gauge:
        for what, done, total in [("validating", 0, 0), ("in progress", 7, 20), ("in progress", 5, 20)]:
            gauge.show(what, done, total)
        gauge.start_stage()
        gauge.show("results", 1, 20)
        assert gauge._progress is not None
        bars = [(bar.completed, bar.total) for bar in gauge._progress.tasks]
    assert bars == [(7, 20), (1, 20)]


def test_bar_without_a_total_is_not_drawn_full(terminal: _Terminal) -> None:
    with _output(StringIO(), terminal).progress_bar() as gauge:
        gauge.show("validating", 0, 0)
        assert gauge._progress is not None
        assert gauge._progress.tasks[0].total is None


def test_control_signs_of_others_do_not_reach_the_terminal(terminal: _Terminal) -> None:
    _output(terminal, StringIO()).show_facts([("owner", "\x1b[2Jx")], {})
    assert terminal.getvalue() == "owner   [2Jx\n"


def test_json_output_has_only_the_data() -> None:
    out, err = StringIO(), StringIO()
    output = _output(out, err, as_json=True)
    output.show_table(_TABLE, _DATA)
    assert json.loads(out.getvalue()) == _DATA
    assert err.getvalue() == ""


def test_failure_under_json_is_one_object_on_standard_error() -> None:
    out, err = StringIO(), StringIO()
    _output(out, err, as_json=True).show_error("no", "hint", {"message": "no", "code": "x" * 200})
    assert (out.getvalue(), json.loads(err.getvalue())) == ("", {"error": {"message": "no", "code": "x" * 200}})


def test_failure_is_one_line_with_a_remedy() -> None:
    err = StringIO()
    _output(StringIO(), err).show_error("it [broke]", "mend it", {})
    assert err.getvalue() == "svc: it [broke]\n     mend it\n"


def test_quiet_hides_remarks_only() -> None:
    out, err = StringIO(), StringIO()
    output = _output(out, err, quiet=True)
    output.write_note("on its way")
    output.warn("beware")
    output.write_text("42")
    assert (out.getvalue(), err.getvalue()) == ("42\n", "svc: warning: beware\n")


def test_gauge_is_silent_without_a_terminal() -> None:
    err = StringIO()
    with _output(StringIO(), err).progress_bar() as gauge:
        gauge.show("lines", 1, 2)
    assert err.getvalue() == ""


def test_gauge_stays_off_a_shared_terminal(terminal: _Terminal) -> None:
    with _output(terminal, terminal).progress_bar(shares_terminal=True) as gauge:
        gauge.show("lines", 1, 2)
    assert terminal.getvalue() == ""
    with _output(StringIO(), terminal).progress_bar(shares_terminal=True) as gauge:
        gauge.show("lines", 1, 2)
    assert "1/2" in terminal.getvalue()


def test_gauge_on_a_terminal_shows_how_far_it_is(terminal: _Terminal) -> None:
    with _output(StringIO(), terminal).progress_bar() as gauge:
        gauge.show("lines [x]", 1, 20)
        gauge.show("lines [x]", 20, 20)
    assert "20/20" in terminal.getvalue()
    assert "lines [x]" in terminal.getvalue()


_ID = "0x" + "ab" * 32


def test_long_id_is_on_its_own_line(terminal: _Terminal) -> None:
    table = Table(
        ("job", "model", "busy"), [(_ID, "demo/text", "7"), (_ID, "[x]", None)], frozenset({"busy"}), frozenset({"job"})
    )
    _output(terminal, StringIO()).show_table(table, [])
    lines = [line.rstrip() for line in terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]
    assert lines == ["job", "  model      busy", _ID, "  demo/text     7", _ID, "  [x]           —"]


def test_id_that_fits_stays_in_its_row(terminal: _Terminal) -> None:
    table = Table(("job", "model"), [(_ID, "demo/a")], never_cut=frozenset({"job"}))
    _output(terminal, StringIO()).show_table(table, [])
    assert f"{_ID}  demo/a" in terminal.getvalue()


def test_failure_lists_next_commands_one_per_line() -> None:
    out, err = StringIO(), StringIO()
    output = _output(out, err)
    output.next_step = NextStep("it goes on", (f"svc wait {_ID}", f"svc result {_ID}"))
    output.show_error("interrupted", None, {})
    assert err.getvalue() == f"svc: interrupted\n     it goes on:\n  svc wait {_ID}\n  svc result {_ID}\n"


def test_file_appears_once_it_is_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open_output(path) as file:
        file.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_that_cannot_be_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"), open_output(tmp_path / "no" / "out"):
        pytest.fail("the block must not begin")


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"before")
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        with open_output(path) as file:
            file.write(b"after")
    assert (target.read_bytes(), link.is_symlink()) == (b"after", True)
    assert (os.read(reader, 10), pipe.is_fifo()) == (b"after", True)
    os.close(reader)


def test_planted_link_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "out.partial").symlink_to(victim)
    with open_output(tmp_path / "out") as file:
        file.write(b"all of it")
    assert victim.read_bytes() == b"precious"


def test_nothing_is_left_of_a_block_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), open_output(tmp_path / "out"):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OrderRefused("no", param="max_tokens"), ExitCode.USAGE),
        (errors.OrderRefused("no key", param="SVC_WALLET_KEY"), ExitCode.NO_KEY),
        (errors.SigningFailed("no"), ExitCode.NO_KEY),
        (errors.ConnectionFailed("no"), ExitCode.TRY_AGAIN),
        (errors.NoProvider("nobody"), ExitCode.TRY_AGAIN),
        (errors.NotReady("wait", type_="not_ready", status=503, retryable=True), ExitCode.TRY_AGAIN),
        (errors.PlanShort("m", 1, 2), ExitCode.TRY_AGAIN),
        (errors.InvalidRequest("no", type_="invalid_request_error", status=400), ExitCode.REFUSED),
        (errors.QuoteRefused("no", code="over_max_amount"), ExitCode.REFUSED),
        (errors.EscrowUntrusted("no", code="escrow_mock"), ExitCode.REFUSED),
        (errors.JobFailed("0x00", "reclaim"), ExitCode.NO_RESULT),
        (errors.BatchFailed("batch_1", "no", None), ExitCode.NO_RESULT),
        (errors.WaitTimedOut("job", 1), ExitCode.STILL_RUNNING),
        (errors.ReceiptTimeout("wait", type_="receipt_timeout", status=504), ExitCode.STILL_RUNNING),
        (errors.ResultUnreadable("not yet", code="no_result"), ExitCode.STILL_RUNNING),
        (errors.OutcomeUnknown("no word"), ExitCode.STILL_RUNNING),
        (errors.ResultUnreadable("no", code="gateway_unavailable", retryable=True), ExitCode.UNREADABLE),
    ],
)
def test_failure_ends_with_its_exit_code(error: SvcError, code: ExitCode) -> None:
    assert exit_code_for(error) is code


def test_failure_that_can_be_mended_says_how() -> None:
    assert "SVC_PIN_GATEWAY" in str(hint_for(errors.ResultUnreadable("no", code="reads_disabled")))
    assert "svc keygen" in str(hint_for(errors.OrderRefused("no", param="SVC_WALLET_KEY")))
    assert hint_for(errors.OrderRefused("no", param="seed")) is None


def test_failure_in_json_has_all_that_a_script_branches_on() -> None:
    error = errors.Busy("many", type_="busy", status=429, code="c", param="p", request_id="r", retryable=True)
    assert error_json(error) == {
        **{"message": "many", "type": "busy", "code": "c", "param": "p", "request_id": "r", "retryable": True}
    }
