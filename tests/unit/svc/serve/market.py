"""A market of one fake coordinator for `svc serve`. Jobs are opened, answered and sealed as by a provider, and go
through the states that a test chooses."""

import json
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import httpx

from common.container import open_with_secret
from common.envelope import Envelope, ResultBody
from common.scalars import read_base64
from common.sealed_result import seal_result
from svc.core.sealing import MAX_INLINE_CONTAINER_BYTES
from svc.serve.http import Application
from svc.serve.serving import LocalServer, open_server
from svc.serve.settings import ServeSettings
from tests.unit.svc.fake_coordinator import (
    BOX_SECRET,
    CANDIDATE,
    JOB_REGISTRY,
    WALLET,
    Answer,
    Asked,
    FakeCoordinator,
    failing,
    job,
    posted,
    progress,
    quoting,
    settle,
    step,
    stored,
)

GATEWAY: Final = "http://gateway"
PORT: Final = 8403
SETTLED: Final = ("queued", "in_progress", "completed")
CHAT_MODEL, TEXT_MODEL, EMBED_MODEL, IMAGE_MODEL = "demo/chat", "demo/text", "demo/embed", "demo/image"
MODELS: Final = {
    TEXT_MODEL: ("1", "/v1/responses"),
    CHAT_MODEL: ("2", "/v1/chat/completions"),
    EMBED_MODEL: ("3", "/v1/embeddings"),
    IMAGE_MODEL: ("4", "/v1/images/generations"),
}
REGISTRY: Final = bytes.fromhex(JOB_REGISTRY[2:])


def candidate(provider: int, rate: int = 1_000_000) -> dict[str, str]:
    return {**CANDIDATE, "provider_id": str(provider), "rate_in": str(rate), "rate_out": str(2 * rate)}


def listed(name: str) -> dict[str, Any]:
    number, endpoint = MODELS[name]
    details = {"model_id": number, "enabled": True, "endpoint": endpoint}
    return {"id": name, "object": "model", "owned_by": "demo", "svc": details, "as_of_block": "5"}


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit the size of files to zero until the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@attrs.define
class Job:
    """`steps`: states that successive looks return. The last state repeats."""

    id: str
    provider: int
    model: str
    input: dict[str, Any]
    body: dict[str, Any]
    steps: list[str]


@attrs.define
class ServedMarket:
    """`answer`: the model. `steps`: by provider, the states of its jobs. `early`: the status that is reported for
    every job before its block, or the error of its post."""

    answer: Callable[[str, dict[str, Any]], Any]
    coordinator: FakeCoordinator = attrs.field(factory=FakeCoordinator)
    candidates: list[dict[str, str]] = attrs.field(factory=lambda: [candidate(7)])
    steps: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    jobs: dict[str, Job] = attrs.field(factory=dict)
    usage: dict[str, Any] = attrs.field(factory=lambda: {"input_tokens": 9, "output_tokens": 3})
    refuse: Answer | None = None
    early: str | None = None

    def __attrs_post_init__(self) -> None:
        tell = self.coordinator.tell
        tell("GET /v1/models", Answer(200, {"object": "list", "data": [listed(name) for name in MODELS]}))
        for name in MODELS:
            tell(f"GET /v1/models/{name}", Answer(200, listed(name)))
        tell("POST /v1/jobs", self._order)

    @property
    def posts(self) -> list[Asked]:
        return [asked for asked in self.coordinator.to("POST /v1/jobs") if "auth_sig" in asked.body]

    def probes(self) -> int:
        return len([asked for asked in self.coordinator.to("POST /v1/jobs") if "c" not in asked.body])

    def _order(self, asked: Asked) -> Answer:
        if "c" not in asked.body:
            return Answer(402, {"candidates": self.candidates})
        if "auth_sig" not in asked.body:
            return quoting()(asked)
        if self.refuse is not None:
            return self.refuse
        container = read_base64(asked.body["container"], MAX_INLINE_CONTAINER_BYTES, "container")
        envelope = Envelope.parse(open_with_secret(BOX_SECRET, 31337, REGISTRY, WALLET.address, container))
        job_id, provider = asked.body["job_id"], asked.body["designated"]
        made = Job(
            job_id, provider, envelope.model, dict(envelope.input), asked.body, list(self.steps.get(provider, SETTLED))
        )
        self.jobs[job_id] = made
        raw = bytes.fromhex(job_id[2:])
        body = ResultBody(raw, self.answer(made.model, made.input), self.usage).encode()
        sealed = seal_result(envelope.result_key, 31337, REGISTRY, raw, body)
        self.coordinator.tell(f"GET {GATEWAY}/ipfs/{job_id[2:20]}", Answer(200, sealed))
        self.coordinator.tell(f"GET /v1/jobs/{job_id}", lambda _: Answer(200, self._shown(made)))
        self.coordinator.tell(f"POST /v1/jobs/{job_id}/cancel", lambda _: self._cancel(made))
        if self.early is None:
            return posted(asked)
        self.coordinator.tell(f"GET /v1/jobs/{job_id}/progress", Answer(200, self._progress(made)))
        return stored(asked)

    def _progress(self, made: Job) -> dict[str, Any]:
        if self.early not in ("queued", "in_progress", "completed"):
            refused = step("post", "refused", reason=self.early)
            return progress(made.id, "refused", refused, provisional=False)
        provider, tokens = str(made.provider), str(min(3, made.body["units_out"]))
        claim = step("claim", "stored", provider_id=provider)
        done = settle(made.id[2:20], provider_id=provider, completion_tok=tokens)
        steps = {"queued": (), "in_progress": (claim,), "completed": (claim, done)}[self.early]
        return progress(made.id, self.early, *steps)

    def _shown(self, made: Job) -> dict[str, Any]:
        status = made.steps.pop(0) if len(made.steps) > 1 else made.steps[0]
        order = {name: str(made.body[name]) for name in ("rate_in", "rate_out", "units_in", "units_out", "designated")}
        more: dict[str, Any] = {"provider_id": str(made.provider), "model": made.model}
        if status == "completed":
            tokens = str(min(3, made.body["units_out"]))
            more |= {"state": 2, "ended_because": 1, "completion_tok": tokens, "result_cid": made.id[2:20]}
        elif status == "failed":
            more |= {"state": 3, "ended_because": 3}
        elif status == "cancelled":
            more |= {"state": 3, "ended_because": 2}
        return job(made.id, status, **order, **more)

    def _cancel(self, made: Job) -> Answer:
        if made.steps[0] != "queued":
            return failing(409, "invalid_request_error", "NotCancellable")
        made.steps[:] = ["cancelled"]
        return Answer(200, {"job_id": made.id, "tx_hash": "0x" + "ee" * 32})

    @asynccontextmanager
    async def served(self, folder: Path, settings: ServeSettings | None = None) -> AsyncIterator["Caller"]:
        said: list[str] = []
        client = self.coordinator.client(gateways=GATEWAY)
        async with open_server(client, settings or ServeSettings(), folder, PORT, said.append) as served:
            keys = served.application.keys._keys
            yield Caller(served, {key.name: key.secret.decode() for key in keys}, said)


@attrs.frozen
class Heard:
    """An answer as its caller receives it. `at`: arrival time of each piece."""

    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    at: list[float]

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def events(self) -> list[Any]:
        """Return the data of each event, without comments."""
        lines = [line for line in self.content.decode().splitlines() if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]

    @property
    def code(self) -> str | None:
        return self.json["error"]["code"]  # type: ignore[no-any-return] # of JSON


@attrs.frozen
class Caller:
    """Calls the application like a server."""

    served: LocalServer
    keys: Mapping[str, str]
    said: list[str]

    @property
    def application(self) -> Application:
        return self.served.application

    async def post(self, path: str, body: object, *, key: str = "default", **more: Any) -> Heard:
        return await self.call("POST", path, json.dumps(body).encode(), key=key, **more)

    async def get(self, path: str, *, key: str = "default", **more: Any) -> Heard:
        return await self.call("GET", path, b"", key=key, **more)

    async def call(
        self,
        method: str,
        path: str,
        content: bytes,
        *,
        key: str | None = "default",
        headers: Mapping[str, str] | None = None,
        gone: anyio.Event | None = None,
        breaks: bool = False,
    ) -> Heard:
        """Call a route. `gone`: when set, the caller disconnects. `breaks`: the connection breaks during the answer."""
        sent = {"host": f"127.0.0.1:{PORT}", "content-type": "application/json", **(headers or {})}
        if key is not None:
            sent["authorization"] = f"Bearer {self.keys.get(key, key)}"
        url = httpx.URL(path)
        scope = {
            "type": "http",
            "method": method,
            "path": url.path,
            "query_string": url.query,
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        waiting = [{"type": "http.request", "body": content, "more_body": False}]
        left = gone or anyio.Event()
        heard = Heard(0, {}, [], [])

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal heard
            if message["type"] == "http.response.start":
                known = {name.decode(): value.decode() for name, value in message["headers"]}
                heard = Heard(message["status"], known, [], [])
            elif breaks:
                raise ConnectionResetError
            elif message.get("body"):
                heard.pieces.append(message["body"])
                heard.at.append(anyio.current_time())

        await self.application(scope, receive, send)
        return heard
