"""Every class of control character is escaped, in texts, in messages and in JSON. All other characters are
unchanged."""

import json
import unicodedata
from io import StringIO

import pytest

from svc.cli.clean_text import clean, clean_json, clean_line
from svc.cli.output import Output

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


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("name", CLASSES)
def test_control_characters_are_shown_escaped(name: str) -> None:
    sent, shown = CLASSES[name]
    assert clean(sent) == shown
    assert clean_line(sent) == shown


@pytest.mark.parametrize("name", CLASSES)
def test_json_on_a_terminal_is_escaped_and_stays_the_same_value(name: str) -> None:
    sent, _ = CLASSES[name]
    out = _Terminal()
    Output(as_json=True, quiet=False, out=out, err=StringIO()).write_json({"output": sent})
    assert json.loads(out.getvalue()) == {"output": sent}
    assert not _obeyed(out.getvalue())
    assert json.loads(clean_json(json.dumps({"a": sent}, ensure_ascii=False))) == {"a": sent}


@pytest.mark.parametrize("name", CLASSES)
def test_results_are_escaped_only_on_a_terminal(name: str) -> None:
    sent, shown = CLASSES[name]
    terminal, pipe = _Terminal(), StringIO()
    for out in (terminal, pipe):
        output = Output(as_json=False, quiet=False, out=out, err=StringIO())
        output.write_text(sent)
        output.write_json_line([sent])
    assert terminal.getvalue().startswith(shown + "\n")
    assert not _obeyed(terminal.getvalue())
    line = json.dumps([sent], ensure_ascii=False)
    assert pipe.getvalue() == f"{sent}\n{line}\n"


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("as_json", [True, False])
def test_messages_are_escaped_everywhere(name: str, as_json: bool) -> None:
    sent, _ = CLASSES[name]
    err = StringIO()
    output = Output(as_json=as_json, quiet=False, out=StringIO(), err=err)
    output.write_note(sent)
    output.warn(sent)
    output.show_error(sent, sent, {"message": sent})
    assert not _obeyed(err.getvalue())


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
