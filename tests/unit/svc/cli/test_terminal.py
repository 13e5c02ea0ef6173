"""Every class of control character is escaped, in texts, in messages and in JSON. All other characters are
unchanged."""

import json
import unicodedata
from io import StringIO

import pytest

from svc.cli.clean_text import clean, clean_json, clean_line
from svc.cli.output import Output
from tests.unit.svc.cli.terminal import Terminal

CLASSES = {
    "C0: escape": ("\x1b[2J", "\\x1b[2J"),
    "C0: OSC 52, the clipboard": ("\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
    "C0: title": ("\x1b]0;bash\x1b\\", "\\x1b]0;bash\\x1b\\"),
    "C0: device control string": ("\x1bP+q544e\x1b\\", "\\x1bP+q544e\\x1b\\"),
    "C0: backspace": ("safe\b\b\b\brm", "safe\\x08\\x08\\x08\\x08rm"),
    "C0: carriage return": ("paid\rfree", "paid\\rfree"),
    "C0: nul and bell": ("\x00\x07", "\\x00\\x07"),
    "C0: shift out": ("\x0e", "\\x0e"),
    "DEL": ("\x7f", "\\x7f"),
    "C1: CSI": ("\x9b2J", "\\x9b2J"),
    "C1: OSC": ("\x9d52;c;ZXZpbA==\x9c", "\\x9d52;c;ZXZpbA==\\x9c"),
    "C1: next line": ("\x85", "\\x85"),
    "bidi override": ("\u202egpj.exe\u202c", "\\u202egpj.exe\\u202c"),
    "bidi embedding": ("\u202a\u202b", "\\u202a\\u202b"),
    "bidi isolate": ("\u2066\u2067\u2068\u2069", "\\u2066\\u2067\\u2068\\u2069"),
    "bidi mark": ("\u200e\u200f\u061c", "\\u200e\\u200f\\u061c"),
    "zero-width": ("\u200b\u200c\u200d\u2060\ufeff", "\\u200b\\u200c\\u200d\\u2060\\ufeff"),
    "soft hyphen": ("\xad", "\\xad"),
    "line separators": ("\u2028\u2029", "\\u2028\\u2029"),
    "tags": ("\U000e0041", "\\U000e0041"),
    "surrogate": ("\udc9b", "\\udc9b"),
}


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", CLASSES)
def test_control_characters_are_shown_escaped(name: str) -> None:
    sent, shown = CLASSES[name]
    assert clean(sent) == shown
    assert clean_line(sent) == shown
    assert json.loads(clean_json(json.dumps({"a": sent}, ensure_ascii=False))) == {"a": sent}
    terminal, pipe, messages = Terminal(), StringIO(), StringIO()
    for out in (terminal, pipe):
        output = Output(as_json=False, quiet=False, out=out, err=messages)
        output.write_text(sent)
        output.write_json_line([sent])
    assert terminal.getvalue().startswith(shown + "\n")
    assert pipe.getvalue() == f"{sent}\n{json.dumps([sent], ensure_ascii=False)}\n"
    for as_json in (True, False):
        output = Output(as_json=as_json, quiet=False, out=StringIO(), err=messages)
        output.write_note(sent)
        output.warn(sent)
        output.show_error(sent, sent, {"message": sent})
    data = Terminal()
    Output(as_json=True, quiet=False, out=data, err=messages).write_json({"output": sent})
    assert json.loads(data.getvalue()) == {"output": sent}
    assert [_obeyed(each.getvalue()) for each in (terminal, messages, data)] == [[], [], []]


def test_messages_cannot_forge_a_line_of_their_own() -> None:
    err = StringIO()
    Output(as_json=False, quiet=False, out=StringIO(), err=err).show_error("no\nsvc: paid 0", None, {})
    assert err.getvalue() == "svc: no\\nsvc: paid 0\n"


@pytest.mark.parametrize("text", ["two\nlines\tand a tab", "Grüße, 世界 עברית हिन्दी", "é 😀 — “quoted”", ""])
def test_text_of_any_script_is_left_as_it_is(text: str) -> None:
    assert clean(text) == text


def _obeyed(text: str) -> list[str]:
    """Return the characters that a terminal acts on, by Unicode's classes instead of the project's own."""
    return [sign for sign in text if unicodedata.category(sign) in {"Cc", "Cf", "Zl", "Zp", "Cs"} and sign != "\n"]
