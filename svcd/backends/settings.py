"""Settings of a backend: the `[model.backend]` table of the configuration, one class per kind.

Fields without `setting` are constants, which only tests change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from common.pricing.model_input import Modality
from common.refusal import Refused
from common.settings.kinds import boolean, choice, list_of, number, path, table_of, text
from common.settings.reader import setting
from common.settings.toml import variants
from svcd.base.json_path import JsonPath
from svcd.base.keys import SecretLocation, secret_location
from svcd.base.kinds import header_table, http_url, json_path, json_table, single_value_path, string_table

# This limit is below the 200 MiB that coordinators accept for a sealed result by default.
_MAX_ANSWER_BYTES: Final = 150 * 2**20
_JOB_ID_PLACEHOLDER: Final = "{id}"


@attrs.frozen(slots=True, kw_only=True)
class ServerSettings:
    """Settings that the backends of all model servers share. The job's deadline also ends an attempt."""

    models: dict[str, str] = setting(table_of(text), "names of models at the server", attrs.Factory(dict))
    headers: dict[str, str] = setting(header_table, "headers of every request", attrs.Factory(dict), secret=True)
    extra: dict[str, Any] = setting(json_table, "members of every request", attrs.Factory(dict))
    api_key: SecretLocation | None = setting(secret_location, "where the server's API key is stored", None, secret=True)
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    attempts: int = 4
    backoff_s: float = 0.5  # before the second attempt; doubles with each further attempt
    max_backoff_s: float = 30.0
    max_answer_bytes: int = _MAX_ANSWER_BYTES


@attrs.frozen(slots=True, kw_only=True)
class OpenAISettings(ServerSettings):
    base_url: str = setting(http_url, "the server's address, without /v1")
    api: Literal["responses", "chat", "embeddings", "images"] = setting(
        choice("responses", "chat", "embeddings", "images"), "the server's route"
    )
    stream: bool | None = setting(boolean, "stream answers (default: if the route can stream)", None)
    cap_name: Literal["max_tokens", "max_completion_tokens"] = setting(
        choice("max_tokens", "max_completion_tokens"), "name of the output limit", "max_tokens"
    )
    drop: tuple[str, ...] = setting(list_of(text), "members of the input that are not sent", ())
    outside_references: bool = setting(boolean, "allow URLs and ids of stored objects in inputs", False)
    check_name: bool = setting(boolean, "claim nothing while the server's list lacks the model", True)
    read_timeout_s: float = setting(
        number(0.01, 86_400), "longest pause between two pieces of an answer, in seconds", 300.0, name="read_seconds"
    )

    def __attrs_post_init__(self) -> None:
        if self.stream and self.api not in ("responses", "chat"):
            raise Refused(f"must be false: the {self.api} route does not stream", "stream")

    @property
    def modality(self) -> Modality:
        """Modality of the jobs that the route serves."""
        match self.api:
            case "embeddings":
                return "embeddings"
            case "images":
                return "image"
            case "responses" | "chat":
                return "text"

    @property
    def root(self) -> str:
        """Base URL of the routes, without a trailing slash."""
        return self.base_url.rstrip("/")

    @property
    def streams(self) -> bool:
        return self.api in ("responses", "chat") if self.stream is None else self.stream

    @property
    def refused_members(self) -> tuple[str, ...]:
        """Members that an input must not have.

        On `responses`, `prompt` refers to the provider's stored templates. On other routes, `prompt` is the text.
        """
        return ("prompt",) if self.api == "responses" else ()


@attrs.frozen(slots=True, kw_only=True)
class HttpSettings(ServerSettings):
    submit_url: str = setting(http_url, "URL that accepts a job")
    poll_url: str | None = setting(http_url, "URL of a job, with {id}", None)
    poll_url_path: JsonPath | None = setting(
        single_value_path, "path to the job's URL in a submission's response", None
    )
    cancel_url: str | None = setting(http_url, "URL that cancels a job, with {id}", None)
    cancel_method: Literal["POST", "DELETE", "PUT"] = setting(
        choice("POST", "DELETE", "PUT"), "method of cancel_url", "POST"
    )
    health_url: str | None = setting(http_url, "URL that shows whether the server is up (default: submit_url)", None)
    input_key: str | None = setting(text, "member for the input (default: the input is the body)", None)
    model_key: str | None = setting(text, "member for the model's name (default: not sent)", None)
    id_path: JsonPath = setting(single_value_path, "path to the job's id", JsonPath.parse("id"))
    status_path: JsonPath = setting(single_value_path, "path to the job's state", JsonPath.parse("status"))
    done: tuple[str, ...] = setting(list_of(text), "states of a finished job", ("succeeded", "completed", "done"))
    failed: tuple[str, ...] = setting(
        list_of(text), "states of a job to retry", ("failed", "error", "canceled", "cancelled")
    )
    rejected: tuple[str, ...] = setting(
        list_of(text), "states of a job that failed because of the client's input", ("rejected",)
    )
    result_path: JsonPath = setting(json_path, "path to the result", JsonPath.parse("output"))
    download: bool = setting(boolean, "download the URLs in the result", False)
    poll_s: float = 1.0
    max_poll_s: float = 15.0

    def __attrs_post_init__(self) -> None:
        if (self.poll_url is None) is (self.poll_url_path is None):
            raise Refused("or poll_url_path must be set, but not both", "poll_url")
        for name, address in (("poll_url", self.poll_url), ("cancel_url", self.cancel_url)):
            if address is not None and _JOB_ID_PLACEHOLDER not in address:
                raise Refused(f"must contain {_JOB_ID_PLACEHOLDER}, which svcd replaces with the job's id", name)


@attrs.frozen(slots=True, kw_only=True)
class ExecSettings:
    command: tuple[str, ...] = setting(list_of(text, at_least=1), "program and its arguments")
    directory: Path | None = setting(path, "working directory", None)
    environment: dict[str, str] = setting(
        string_table, "variables in addition to PATH", attrs.Factory(dict), secret=True
    )
    confine: bool = setting(boolean, "block the program's access to svcd's keys and journal", True)
    attempts: int = 2
    backoff_s: float = 1.0
    grace_s: float = 2.0
    max_answer_bytes: int = _MAX_ANSWER_BYTES

    def __attrs_post_init__(self) -> None:
        if not Path(self.command[0]).is_absolute():
            raise Refused("must begin with the absolute path of a program", "command")


@attrs.frozen(slots=True, kw_only=True)
class EchoSettings:
    delay_seconds: float = setting(number(0, 86_400), "run time of a job", 0.0)


BackendSettings = OpenAISettings | HttpSettings | ExecSettings | EchoSettings
BACKENDS: Final[dict[str, type[BackendSettings]]] = {
    "openai": OpenAISettings,
    "http": HttpSettings,
    "exec": ExecSettings,
    "echo": EchoSettings,
}
backend_kind: Final = variants("kind", BACKENDS)


def with_api_key(settings: BackendSettings, environ: Mapping[str, str]) -> BackendSettings:
    """Return the settings with the API key among the headers. Raise `Refused` if the key cannot be read or sent."""
    if not isinstance(settings, OpenAISettings | HttpSettings) or settings.api_key is None:
        return settings
    key = settings.api_key.read(environ)
    if not key.isprintable():
        raise Refused("must refer to a key of printable ASCII characters")
    return attrs.evolve(settings, headers=settings.headers | {"authorization": f"Bearer {key}"})
