"""`svc serve` in a complete market, with OpenAI's Python client: each call once, sealed and paid for.

The market's demo provider echoes its input as JSON. `python -m tests.peers.clients` tests third-party clients with a
real model.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import openai
import pytest

from tests.e2e.svc.conftest import Market, Svc

MODEL = "demo/text-small"
LINE = {"method": "POST", "url": "/v1/chat/completions"}
SETTINGS = """
tabs = "off"

[models.gpt-4o-mini]
model = "demo/text-small"
max_output_tokens = 16
"""


@attrs.frozen
class Server:
    base_url: str
    key: str
    state: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.key, max_retries=0)


@pytest.fixture(scope="module")
def server(market: Market, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    settings, state = folder / "serve.toml", folder / "state"
    settings.write_text(SETTINGS)
    settings.chmod(0o600)
    program = [str(Path(sys.executable).with_name("svc")), "serve", "--port", "0"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    command = [*program, "--config", str(settings), "--state", str(state)]
    with subprocess.Popen(command, env=clean | market.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("base_url: "), said
        yield Server(said.split()[1], (state / "serve.key").read_text().strip(), state)
        process.terminate()
        assert process.wait(30) == 0


def given(content: str | None) -> object:
    """Return the input that the demo provider echoed."""
    assert content is not None
    return json.loads(content)["input"]


def test_chat_completion_is_answered_from_a_sealed_job(server: Server, svc: Svc) -> None:
    with server.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}]
        )
    completion = raw.parse()
    assert given(completion.choices[0].message.content) == [{"role": "user", "content": "hello"}]
    assert (completion.model, completion.choices[0].finish_reason) == ("gpt-4o-mini", "stop")
    shown = svc("status", raw.headers["x-svc-job-id"], "--json")
    assert json.loads(shown.out)["status"] == "completed"


def test_client_understands_streams_of_both_routes(server: Server) -> None:
    with server.client() as client:
        chunks = [
            *client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "streamed"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        with client.responses.stream(model=MODEL, input="streamed") as stream:
            kinds = [event.type for event in stream]
            response = stream.get_final_response()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert given(text) == [{"role": "user", "content": "streamed"}]
    assert chunks[-1].usage is not None
    assert given(response.output_text) == "streamed"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_batch_comes_back_in_openais_form(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        {**LINE, "custom_id": f"n{n}", "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{n}"}]}}
        for n in (1, 2)
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    with server.client() as client:
        life = {"anchor": "created_at", "seconds": 3_600}
        file = client.files.create(file=path, purpose="batch", expires_after=life)
        assert file.expires_at == file.created_at + 3_600
        assert client.files.content(file.id).read() == path.read_bytes()
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"run": "1"},
            output_expires_after=life,
        )
        while batch.status not in {"completed", "failed", "expired", "cancelled"}:
            batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.errors, batch.metadata) == ("completed", None, {"run": "1"})
        assert batch.output_file_id is not None
        output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        assert client.files.retrieve(batch.output_file_id).expires_at is not None
        assert next(iter(client.batches.list())).id == batch.id  # newest first; other tests use the server too
        files = [each.id for each in client.files.list(limit=1, order="asc")]
        assert files[-2:] == [file.id, batch.output_file_id]
        assert client.files.delete(file.id).deleted
    assert [line["custom_id"] for line in output] == ["n1", "n2"]
    assert len({line["response"]["request_id"] for line in output}) == 1  # both lines shared a job
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in output]
    assert [given(text) for text in texts] == [line["body"]["messages"] for line in lines]  # type: ignore[index]


def test_cancelled_batch_files_account_for_every_line(server: Server) -> None:
    lines = [
        {**LINE, "custom_id": f"n{n}", "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{n}"}]}}
        for n in range(3)
    ]
    with server.client() as client:
        file = client.files.create(file=("lines.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
        while batch.status not in {"completed", "failed", "expired", "cancelled"}:
            batch = client.batches.retrieve(batch.id)
        files = [each for each in (batch.output_file_id, batch.error_file_id) if each is not None]
        told = [json.loads(line) for each in files for line in client.files.content(each).text.splitlines()]
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)
    assert (batch.status, batch.cancelled_at is not None) == ("cancelled", True)
    assert not told or sorted(line["custom_id"] for line in told) == [
        "n0",
        "n1",
        "n2",
    ]  # either no job was posted, or all are reported


def test_wrong_line_fails_the_batch_and_is_named(server: Server) -> None:
    with server.client() as client:
        file = client.files.create(file=("lines.jsonl", b'{"custom_id": "a"}\n'), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while batch.status == "validating":
            batch = client.batches.retrieve(batch.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert (batch.errors.data[0].line, batch.errors.data[0].param) == (1, "method")


def test_what_was_spent_is_shown_by_day_model_and_key(server: Server, svc: Svc) -> None:
    with server.client() as client:
        client.responses.create(model=MODEL, input="counted")
    shown = svc("spend", "--state", str(server.state), "--json", "--by", "key")
    (row,) = json.loads(shown.out)
    assert row["key"] == "default"
    assert int(row["spent"]) >= 2_000
    table = svc("spend", "--state", str(server.state), "--csv").out.splitlines()
    assert table[0].startswith("time,key,kind,asked_for,model,job_id")
    assert len(table) > 1
