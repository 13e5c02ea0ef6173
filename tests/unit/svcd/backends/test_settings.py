import re
import tomllib
from pathlib import Path

import pytest

from common.refusal import Refused
from common.settings.kinds import read_value
from svcd.backends.settings import OpenAISettings, backend_kind
from tests.support.fakes.backend_settings import read_backend

OPENAI = {"kind": "openai", "api": "chat", "base_url": "http://127.0.0.1:8000/"}
HTTP = {"kind": "http", "submit_url": "http://h/jobs", "poll_url": "http://h/jobs/{id}"}
EXEC = {"kind": "exec", "command": ["/bin/true"]}


@pytest.mark.parametrize(
    ("table", "param"),
    [
        ({}, "kind"),
        ({"kind": "magic"}, "kind"),
        ({"kind": "echo", "dealy_seconds": 1}, "dealy_seconds"),
        ({"kind": "echo", "delay_seconds": True}, "delay_seconds"),
        ({"kind": "echo", "delay_seconds": float("nan")}, "delay_seconds"),
        ({"kind": "openai", "api": "chat"}, "base_url"),
        (OPENAI | {"base_url": "ftp://host"}, "base_url"),
        (OPENAI | {"api": "completions"}, "api"),
        (OPENAI | {"stream": "yes"}, "stream"),
        (OPENAI | {"stream": True, "api": "embeddings"}, "stream"),
        (OPENAI | {"models": {"a": 1}}, "models.a"),
        (OPENAI | {"extra": []}, "extra"),
        (OPENAI | {"headers": {"x": "a\r\nb"}}, "headers.x"),
        (OPENAI | {"headers": {"a b": "c"}}, "headers.a b"),
        (OPENAI | {"api_key": "a/b"}, "api_key"),
        ({"kind": "http", "submit_url": "http://h/jobs"}, "poll_url"),
        (HTTP | {"poll_url_path": "urls.get"}, "poll_url"),
        (HTTP | {"poll_url": "http://h/jobs"}, "poll_url"),
        (HTTP | {"cancel_url": "http://h/cancel"}, "cancel_url"),
        (HTTP | {"status_path": "a[*]"}, "status_path"),
        (HTTP | {"done": "ok"}, "done"),
        ({"kind": "exec", "command": []}, "command"),
        ({"kind": "exec", "command": ["python3"]}, "command"),
        (EXEC | {"directory": "here"}, "directory"),
    ],
)
def test_a_mistake_is_refused_and_names_its_key(table: dict[str, object], param: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_value(backend_kind, table, "backend")
    assert refusal.value.param == f"backend.{param}"


@pytest.mark.parametrize("place", ["{folder}/key", "$KEY", "key"])
def test_api_key_comes_from_its_place_and_is_never_printed(place: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-123\n")
    environment = {"KEY": "sk-123", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    settings = read_backend(OPENAI | {"api_key": place.format(folder=tmp_path)}, environment)
    assert isinstance(settings, OpenAISettings)
    assert settings.headers == {"authorization": "Bearer sk-123"}
    assert "sk-123" not in repr(settings)


@pytest.mark.parametrize("place", ["$ABSENT", "/nonexistent/key", "absent"])
def test_missing_api_key_is_refused(place: str) -> None:
    with pytest.raises(Refused):
        read_backend(OPENAI | {"api_key": place})


def test_text_routes_stream_by_default_and_slashes_are_dropped() -> None:
    chat, embeddings = read_backend(OPENAI), read_backend(OPENAI | {"api": "embeddings"})
    assert isinstance(chat, OpenAISettings)
    assert isinstance(embeddings, OpenAISettings)
    assert (chat.streams, embeddings.streams, chat.root) == (True, False, "http://127.0.0.1:8000")


def test_examples_of_the_reference_are_read(tmp_path: Path) -> None:
    (tmp_path / "llama-key").write_text("sk-123")
    page = (Path(__file__).parents[4] / "docs/providers/reference.md").read_text()
    tables = [
        tomllib.loads(text)["model"] for text in re.findall(r"```toml\n(\[model.backend\].*?)```", page, re.DOTALL)
    ]
    kinds = [read_backend(table["backend"], {"CREDENTIALS_DIRECTORY": str(tmp_path)}) for table in tables]
    assert [type(kind).__name__ for kind in kinds] == ["OpenAISettings", "HttpSettings", "ExecSettings"]
