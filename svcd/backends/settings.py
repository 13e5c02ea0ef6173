"""What a `[….backend]` table of the configuration says, read into one frozen value per kind."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from common.refusal import Refused
from svcd.base.toml import Table
from svcd.json_path import JsonPath

# The largest result that a coordinator takes is 200 MiB by default: sealed, and with base64 inside of it.
_LONGEST_ANSWER: Final = 150 * 2**20
_DAY: Final = 86400.0


def _secret(_: object) -> str:
    return "<SECRET>"


@attrs.frozen(slots=True, kw_only=True)
class Patience:
    """How long one attempt may take and how many there are. The job's deadline ends all of it in any case."""

    connect_seconds: float
    read_seconds: float  # between two pieces of an answer, not for the whole of it
    attempts: int
    backoff_seconds: float  # before the second attempt; doubled for each one after it
    longest_backoff_seconds: float


@attrs.frozen(slots=True, kw_only=True)
class OpenAISettings:
    base_url: str
    api: str
    models: dict[str, str]
    headers: dict[str, str] = attrs.field(repr=_secret)
    patience: Patience
    stream: bool
    cap_name: str
    extra: dict[str, object]
    drop: tuple[str, ...]
    refuse: tuple[str, ...]
    outside_references: bool
    health_path: str
    longest_answer_bytes: int


@attrs.frozen(slots=True, kw_only=True)
class HttpSettings:
    submit_url: str
    poll_url: str | None
    poll_url_path: JsonPath | None
    cancel_url: str | None
    cancel_method: str
    health_url: str
    models: dict[str, str]
    headers: dict[str, str] = attrs.field(repr=_secret)
    input_key: str | None
    model_key: str | None
    extra: dict[str, object]
    id_path: JsonPath
    status_path: JsonPath
    done: tuple[str, ...]
    failed: tuple[str, ...]
    rejected: tuple[str, ...]
    error_path: JsonPath
    result_path: JsonPath
    download: bool
    poll_seconds: float
    longest_poll_seconds: float
    patience: Patience
    longest_answer_bytes: int


@attrs.frozen(slots=True, kw_only=True)
class ExecSettings:
    command: tuple[str, ...]
    directory: Path | None
    environment: dict[str, str] = attrs.field(repr=_secret)
    attempts: int
    backoff_seconds: float
    grace_seconds: float
    longest_answer_bytes: int
    confine: bool  # keep the program from svcd's keys and journal


@attrs.frozen(slots=True, kw_only=True)
class EchoSettings:
    delay_seconds: float


BackendSettings = OpenAISettings | HttpSettings | ExecSettings | EchoSettings


def read_backend(table: Mapping[str, object], environment: Mapping[str, str]) -> BackendSettings:
    """`Refused.param` is the key at fault. What `*_env` names, and where systemd's credentials are, is looked up in
    `environment`."""
    entries = Table(table)
    kind = entries.choice("kind", tuple(_KINDS))
    settings = _KINDS[kind](entries, environment)
    entries.done()
    return settings


def _openai(table: Table, environment: Mapping[str, str]) -> OpenAISettings:
    api = table.choice("api", ("responses", "chat", "embeddings", "images"))
    return OpenAISettings(
        base_url=table.url("base_url").rstrip("/"),
        api=api,
        models=table.text_map("models"),
        headers=_headers(table, environment),
        patience=_patience(table),
        stream=_stream(table, api),
        cap_name=table.choice("cap_name", ("max_tokens", "max_completion_tokens"), "max_tokens"),
        extra=table.object_map("extra"),
        drop=table.texts("drop", ()),
        # A stored prompt template is the provider's own; other routes mean the text itself by this name.
        refuse=table.texts("refuse", ("prompt",) if api == "responses" else ()),
        outside_references=table.boolean("outside_references", False),
        health_path=_health_path(table),
        longest_answer_bytes=_longest_answer(table),
    )


def _stream(table: Table, api: str) -> bool:
    can = api in ("responses", "chat")
    stream = table.boolean("stream", can)
    if stream and not can:
        raise Refused(f"the {api} route does not stream", "stream")
    return stream


def _health_path(table: Table) -> str:
    path = table.text("health_path", "/v1/models")
    if not path.startswith("/"):
        raise Refused("health_path must begin with /", "health_path")
    return path


def _http(table: Table, environment: Mapping[str, str]) -> HttpSettings:
    submit_url = table.url("submit_url")
    poll_url = table.optional("poll_url", table.url)
    poll_url_path = table.optional("poll_url_path", lambda key: _path(table, key))
    if (poll_url is None) is (poll_url_path is None):
        raise Refused("exactly one of poll_url and poll_url_path is needed", "poll_url")
    return HttpSettings(
        submit_url=submit_url,
        poll_url=_template(poll_url, "poll_url"),
        poll_url_path=poll_url_path,
        cancel_url=_template(table.optional("cancel_url", table.url), "cancel_url"),
        cancel_method=table.choice("cancel_method", ("POST", "DELETE", "PUT"), "POST"),
        health_url=table.url("health_url", submit_url),
        models=table.text_map("models"),
        headers=_headers(table, environment),
        input_key=table.optional("input_key", table.text),
        model_key=table.optional("model_key", table.text),
        extra=table.object_map("extra"),
        id_path=_path(table, "id_path", "id"),
        status_path=_path(table, "status_path", "status"),
        done=table.texts("done", ("succeeded", "completed", "done")),
        failed=table.texts("failed", ("failed", "error", "canceled", "cancelled")),
        rejected=table.texts("rejected", ("rejected",)),
        error_path=_path(table, "error_path", "error"),
        result_path=_path(table, "result_path", "output", single=False),
        download=table.boolean("download", False),
        poll_seconds=table.number("poll_seconds", 0.01, 3600, 1),
        longest_poll_seconds=table.number("longest_poll_seconds", 0.01, 3600, 15),
        patience=_patience(table),
        longest_answer_bytes=_longest_answer(table),
    )


def _exec(table: Table, _: Mapping[str, str]) -> ExecSettings:
    command = table.texts("command")
    if not command or not Path(command[0]).is_absolute():
        raise Refused("command must begin with the absolute path of a program", "command")
    return ExecSettings(
        command=command,
        directory=table.optional("directory", table.path),
        environment=table.text_map("environment"),
        attempts=table.integer("attempts", 1, 20, 2),
        backoff_seconds=table.number("backoff_seconds", 0, 600, 1),
        grace_seconds=table.number("grace_seconds", 0, 600, 2),
        longest_answer_bytes=_longest_answer(table),
        confine=table.boolean("confine", True),
    )


def _echo(table: Table, _: Mapping[str, str]) -> EchoSettings:
    return EchoSettings(delay_seconds=table.number("delay_seconds", 0, _DAY, 0))


_KINDS: Final[dict[str, Callable[[Table, Mapping[str, str]], BackendSettings]]] = {
    "openai": _openai,
    "http": _http,
    "exec": _exec,
    "echo": _echo,
}


def _patience(table: Table) -> Patience:
    return Patience(
        connect_seconds=table.number("connect_seconds", 0.01, 600, 5),
        read_seconds=table.number("read_seconds", 0.01, _DAY, 300),
        attempts=table.integer("attempts", 1, 20, 4),
        backoff_seconds=table.number("backoff_seconds", 0, 600, 0.5),
        longest_backoff_seconds=table.number("longest_backoff_seconds", 0, 3600, 30),
    )


def _longest_answer(table: Table) -> int:
    return table.integer("longest_answer_bytes", 1024, 2**30, _LONGEST_ANSWER)


def _headers(table: Table, environment: Mapping[str, str]) -> dict[str, str]:
    headers = table.headers("headers")
    key = _api_key(table, environment)
    return headers if key is None else headers | {"authorization": f"Bearer {key}"}


def _api_key(table: Table, environment: Mapping[str, str]) -> str | None:
    """From a file, a variable or a systemd credential: a key does not stand in the configuration itself."""
    sources = [name for name in ("api_key_file", "api_key_env", "api_key_credential") if table.has(name)]
    if not sources:
        return None
    source = sources[0]
    if len(sources) > 1:
        raise Refused(f"{sources[1]} stands beside {source}; give one of them", sources[1])
    if source == "api_key_env":
        key = environment.get(table.text(source), "")
    elif source == "api_key_file":
        key = _content(table.path(source), source)
    else:
        directory = environment.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise Refused("there is no CREDENTIALS_DIRECTORY; systemd's LoadCredential= sets it", source)
        key = _content(Path(directory) / table.text(source), source)
    if not key.isascii() or not key.isprintable() or not key:
        raise Refused(f"{source} leads to no key of printable characters", source)
    return key


def _content(path: Path, param: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as broken:
        raise Refused(f"{param}: {path} cannot be read ({broken})", param) from None


def _path(table: Table, key: str, default: str | None = None, single: bool = True) -> JsonPath:
    path = JsonPath.parse(table.text(key, default), key)
    if single and not path.is_single:
        raise Refused(f"{key} must name one place; it holds [*]", key)
    return path


def _template(url: str | None, param: str) -> str | None:
    if url is not None and "{id}" not in url:
        raise Refused(f"{param} must hold {{id}}, where the job's id goes", param)
    return url
