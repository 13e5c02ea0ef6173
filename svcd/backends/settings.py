"""Settings of a backend: the `[model.backend]` table of the configuration, one class per kind.

Fields without `setting` are constants, which only tests change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from common.pricing.model_input import Modality
from common.refusal import Refused
from common.settings.kinds import boolean, choice, listed, mapping, number, path, text
from common.settings.reader import setting
from common.settings.toml import variants
from svcd.base.json_path import JsonPath
from svcd.base.keys import SecretPlace, secret_place
from svcd.base.kinds import headers, http_url, json_path, json_table, single_path, texts

# The largest result that a coordinator takes is 200 MiB by default: sealed, and with base64 inside of it.
_MAX_ANSWER_BYTES: Final = 150 * 2**20
_JOB_ID: Final = "{id}"


@attrs.frozen(slots=True, kw_only=True)
class ServerSettings:
    """Model server. The job's deadline also ends every attempt."""

    models: dict[str, str] = setting(mapping(text), "names of models at the server", attrs.Factory(dict))
    headers: dict[str, str] = setting(headers, "headers of every request", attrs.Factory(dict), secret=True)
    extra: dict[str, Any] = setting(json_table, "members of every request", attrs.Factory(dict))
    api_key: SecretPlace | None = setting(secret_place, "place of the server's API key", None, secret=True)
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 300.0
    attempts: int = 4
    backoff_s: float = 0.5  # before the second attempt; doubled for each one after it
    max_backoff_s: float = 30.0
    max_answer_bytes: int = _MAX_ANSWER_BYTES


@attrs.frozen(slots=True, kw_only=True)
class OpenAISettings(ServerSettings):
    base_url: str = setting(http_url, "the server's address, without /v1")
    api: Literal["responses", "chat", "embeddings", "images"] = setting(
        choice("responses", "chat", "embeddings", "images"), "the server's route"
    )
    stream: bool | None = setting(boolean, "stream answers (default: where the route can)", None)
    cap_name: Literal["max_tokens", "max_completion_tokens"] = setting(
        choice("max_tokens", "max_completion_tokens"), "name of the output limit", "max_tokens"
    )
    drop: tuple[str, ...] = setting(listed(text), "members of the input that are not sent", ())
    outside_references: bool = setting(boolean, "allow addresses and stored objects in inputs", False)
    check_name: bool = setting(boolean, "claim nothing while the server's list lacks the model", True)
    read_timeout_s: float = setting(
        number(0.01, 86_400), "seconds between two pieces of an answer", 300.0, name="read_seconds"
    )

    def __attrs_post_init__(self) -> None:
        if self.stream and self.api not in ("responses", "chat"):
            raise Refused(f"must be false: the {self.api} route does not stream", "stream")

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
    def refused(self) -> tuple[str, ...]:
        """Members of an input that fail the job. A stored prompt template is the provider's own; routes other than
        `responses` mean the text itself by this name."""
        return ("prompt",) if self.api == "responses" else ()


@attrs.frozen(slots=True, kw_only=True)
class HttpSettings(ServerSettings):
    submit_url: str = setting(http_url, "address that takes a job")
    poll_url: str | None = setting(http_url, "address of a job, with {id}", None)
    poll_url_path: JsonPath | None = setting(single_path, "place of that address in the response to a submission", None)
    cancel_url: str | None = setting(http_url, "address that cancels a job, with {id}", None)
    cancel_method: Literal["POST", "DELETE", "PUT"] = setting(
        choice("POST", "DELETE", "PUT"), "method of cancel_url", "POST"
    )
    health_url: str | None = setting(
        http_url, "address that shows whether the server is up (default: submit_url)", None
    )
    input_key: str | None = setting(text, "member for the input (default: the input is the body)", None)
    model_key: str | None = setting(text, "member for the model's name (default: not sent)", None)
    id_path: JsonPath = setting(single_path, "place of the job's id", JsonPath.parse("id"))
    status_path: JsonPath = setting(single_path, "place of the job's state", JsonPath.parse("status"))
    done: tuple[str, ...] = setting(listed(text), "states of a finished job", ("succeeded", "completed", "done"))
    failed: tuple[str, ...] = setting(
        listed(text), "states of a job to retry", ("failed", "error", "canceled", "cancelled")
    )
    rejected: tuple[str, ...] = setting(listed(text), "states of a job that the client caused", ("rejected",))
    result_path: JsonPath = setting(json_path, "place of the result", JsonPath.parse("output"))
    download: bool = setting(boolean, "fetch the addresses in the result", False)
    poll_s: float = 1.0
    max_poll_s: float = 15.0

    def __attrs_post_init__(self) -> None:
        if (self.poll_url is None) is (self.poll_url_path is None):
            raise Refused("must be set, or poll_url_path instead, and not both", "poll_url")
        for name, address in (("poll_url", self.poll_url), ("cancel_url", self.cancel_url)):
            if address is not None and _JOB_ID not in address:
                raise Refused(f"must hold {_JOB_ID}, where the job's id goes", name)


@attrs.frozen(slots=True, kw_only=True)
class ExecSettings:
    command: tuple[str, ...] = setting(listed(text, at_least=1), "program and its arguments")
    directory: Path | None = setting(path, "working directory", None)
    environment: dict[str, str] = setting(texts, "variables in addition to PATH", attrs.Factory(dict), secret=True)
    confine: bool = setting(boolean, "keep the program from svcd's keys and journal", True)
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
backend: Final = variants("kind", BACKENDS)


def with_api_key(settings: BackendSettings, environ: Mapping[str, str]) -> BackendSettings:
    """Return the settings with the API key among the headers. Raise `Refused`."""
    if not isinstance(settings, OpenAISettings | HttpSettings) or settings.api_key is None:
        return settings
    key = settings.api_key.read(environ)
    if not key.isprintable():
        raise Refused("must name a key of printable ASCII characters")
    return attrs.evolve(settings, headers=settings.headers | {"authorization": f"Bearer {key}"})
