import json
from pathlib import Path

import pytest

from common.daemon.process import Fatal
from coordinatord.market.journal import Attempt, DeploymentEntry, open_journal, replace_file

RUN = {"deployer": "0xaa", "terms": {"slas": (60, 300), "fee_bps": 1}}
ENTRY = DeploymentEntry(
    7, (Attempt("0x01", "0x02", 21000, 5, 1), Attempt("0x03", "0x04", 21000, 9, 2)), "0xcc", 12, "0x03"
)


def test_journal_is_read_back_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN) as journal:
        assert journal.last_nonce() == -1
        journal.write("deploy", ENTRY)
        journal.write("set", DeploymentEntry(9, ENTRY.attempts))
        journal.write("set", None)
    with open_journal(path, RUN) as journal:
        assert journal.entries == {"deploy": ENTRY}
        assert journal.last_nonce() == 7


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({**RUN, "deployer": "0xbb"}, "whose deployer was 0xaa; now it is 0xbb"),
        ({**RUN, "terms": {"slas": (60,), "fee_bps": 1}}, r"whose slas was \[60, 300\]; now it is \[60\]"),
        ({**RUN, "more": 1}, "whose more was None; now it is 1"),
    ],
)
def test_journal_of_another_deployment_is_refused(tmp_path: Path, run: dict[str, object], said: str) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN) as journal:
        journal.write("deploy", ENTRY)
    with pytest.raises(Fatal, match=said), open_journal(path, run):
        pass


def test_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with open_journal(path, RUN), pytest.raises(Fatal, match="another run is using"), open_journal(path, RUN):
        pass
    with open_journal(path, RUN):
        pass


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"version": 1, "run": {}, "steps": {"a": {"b": 1}}}'])
def test_file_that_is_no_journal_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.journal"
    path.write_text(text)
    with pytest.raises(Fatal, match="is not a journal of a deployment"), open_journal(path, RUN):
        pass
    assert path.read_text() == text


def test_journal_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(Fatal, match="is a journal of version 2"), open_journal(path, RUN):
        pass


def test_file_that_cannot_be_written_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_text("old")
    (tmp_path / "book.draft").mkdir()
    with pytest.raises(Fatal, match="cannot be written"):
        replace_file(path, "new")
    assert path.read_text() == "old"
