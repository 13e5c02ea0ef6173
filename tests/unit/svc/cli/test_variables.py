import pytest

from tests.unit.svc.cli.market import Svc


def test_misspelt_variable_is_reported_with_the_nearest_one(
    svc: Svc, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SVC_MAX_AMOUT", "1")
    monkeypatch.setenv("SVC_OF_ANOTHER_PROGRAM", "1")
    svc("models")
    said = capsys.readouterr().err
    assert "SVC_MAX_AMOUT is not a setting (did you mean SVC_MAX_AMOUNT?)" in said
    assert "SVC_OF_ANOTHER_PROGRAM" not in said
