"""Settings of a backend: the `[model.backend]` table of the configuration, one struct per kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from common.pricing.model_input import Modality
from common.refusal import Refused
from svcd.base.json_path import JsonPath, SinglePath
from svcd.base.keys import KeySource, read_secret
from svcd.base.toml import Headers, HiddenTexts, Mistake, Text, Texts, TomlTable, Url, read_table

# The largest result that a coordinator takes is 200 MiB by default: sealed, and with base64 inside of it.
_LONGEST_ANSWER: Final = 150 * 2**20

AttemptCount = Annotated[int, Meta(ge=1, le=20)]
AnswerBytes = Annotated[int, Meta(ge=1024, le=2**30)]
Backoff = Annotated[float, Meta(ge=0, le=600)]
PollSeconds = Annotated[float, Meta(ge=0.01, le=3600)]


class ServerSettings(TomlTable, frozen=True, kw_only=True):
    """Model server and its timeouts. The job's deadline also ends every attempt."""

    models: dict[str, str] = field(default_factory=dict)
    headers: Headers = Headers()  # with the API key, once the configuration is read
    extra: dict[str, Any] = field(default_factory=dict)
    api_key_file: Path | None = None
    api_key_env: Text | None = None
    api_key_credential: Text | None = None
    connect_seconds: Annotated[float, Meta(ge=0.01, le=600)] = 5.0
    read_seconds: Annotated[float, Meta(ge=0.01, le=86_400)] = 300.0  # between two pieces of an answer
    attempts: AttemptCount = 4
    backoff_seconds: Backoff = 0.5  # before the second attempt; doubled for each one after it
    longest_backoff_seconds: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    longest_answer_bytes: AnswerBytes = _LONGEST_ANSWER


class OpenAISettings(ServerSettings, frozen=True, kw_only=True, tag="openai", tag_field="kind"):
    base_url: Url
    api: Literal["responses", "chat", "embeddings", "images"]
    stream: bool | None = None  # None: where the route can
    cap_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    drop: Texts = ()
    refuse: Texts | None = None
    outside_references: bool = False
    health_path: str = "/v1/models"
    check_name: bool = True  # claim nothing while the server's list of models lacks the name

    def __post_init__(self) -> None:
        if self.stream and self.api not in ("responses", "chat"):
            raise Refused(f"must be false: the {self.api} route does not stream", "stream")
        if not self.health_path.startswith("/"):
            raise Refused("must begin with /", "health_path")

    @property
    def modality(self) -> Modality:
        """Kind of jobs that the route takes."""
        match self.api:
            case "embeddings":
                return "embeddings"
            case "images":
                return "image"
            case "responses" | "chat":
                return "text"

    @property
    def root(self) -> str:
        """Return the address before the routes, without a trailing slash."""
        return self.base_url.rstrip("/")

    @property
    def streams(self) -> bool:
        return self.api in ("responses", "chat") if self.stream is None else self.stream

    @property
    def refused(self) -> Texts:
        """Members of an input that are not taken. A stored prompt template is the provider's own; routes other than
        `responses` mean the text itself by this name."""
        if self.refuse is not None:
            return self.refuse
        return ("prompt",) if self.api == "responses" else ()


class HttpSettings(ServerSettings, frozen=True, kw_only=True, tag="http", tag_field="kind"):
    submit_url: Url
    poll_url: Url | None = None
    poll_url_path: SinglePath | None = None
    cancel_url: Url | None = None
    cancel_method: Literal["POST", "DELETE", "PUT"] = "POST"
    health_url: Url | None = None  # None: the submit_url
    input_key: Text | None = None
    model_key: Text | None = None
    id_path: SinglePath = SinglePath.parse("id")
    status_path: SinglePath = SinglePath.parse("status")
    done: Texts = ("succeeded", "completed", "done")
    failed: Texts = ("failed", "error", "canceled", "cancelled")
    rejected: Texts = ("rejected",)
    error_path: SinglePath = SinglePath.parse("error")
    result_path: JsonPath = JsonPath.parse("output")
    download: bool = False
    poll_seconds: PollSeconds = 1.0
    longest_poll_seconds: PollSeconds = 15.0

    def __post_init__(self) -> None:
        if (self.poll_url is None) is (self.poll_url_path is None):
            raise Refused("exactly one of poll_url and poll_url_path must be set", "poll_url")
        for name, url in (("poll_url", self.poll_url), ("cancel_url", self.cancel_url)):
            if url is not None and "{id}" not in url:
                raise Refused("must hold {id}, where the job's id goes", name)


class ExecSettings(TomlTable, frozen=True, kw_only=True, tag="exec", tag_field="kind"):
    command: Texts
    directory: Path | None = None
    environment: HiddenTexts = HiddenTexts()
    attempts: AttemptCount = 2
    backoff_seconds: Backoff = 1.0
    grace_seconds: Backoff = 2.0
    longest_answer_bytes: AnswerBytes = _LONGEST_ANSWER
    confine: bool = True  # keep the program from svcd's keys and journal

    def __post_init__(self) -> None:
        if not self.command or not Path(self.command[0]).is_absolute():
            raise Refused("must begin with the absolute path of a program", "command")


class EchoSettings(TomlTable, frozen=True, kw_only=True, tag="echo", tag_field="kind"):
    delay_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.0


BackendSettings = OpenAISettings | HttpSettings | ExecSettings | EchoSettings


def read_backend(table: Mapping[str, object], environment: Mapping[str, str]) -> BackendSettings:
    """Read the table. Raise `Mistake`, whose `param` is the key at fault.

    Variables named by `*_env` and systemd's credentials are looked up in `environment`.
    """
    return with_api_key(read_table(table, BackendSettings), environment)  # type: ignore[arg-type] # a union is a type


def with_api_key(settings: BackendSettings, environment: Mapping[str, str]) -> BackendSettings:
    """Return the settings with the API key, which is stored outside the configuration, among the headers."""
    if not isinstance(settings, OpenAISettings | HttpSettings):
        return settings
    source = KeySource("api_key", settings.api_key_file, settings.api_key_env, settings.api_key_credential)
    found = read_secret(source, environment)
    if found is None:
        return settings
    key, text = found
    if not text.isprintable():
        raise Mistake.at((key,), f"{key} must lead to a key of printable ASCII characters")
    headers = Headers(settings.headers | {"authorization": f"Bearer {text}"})
    return msgspec.structs.replace(settings, headers=headers)
