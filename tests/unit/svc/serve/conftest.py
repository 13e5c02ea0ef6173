"""A market with models that answer like OpenAI's, one for each kind of answer."""

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from svc.serve.files import LocalFiles
from svc.serve.prices import Prices
from tests.unit.svc.serve.market import ServedMarket

T = TypeVar("T")


def spoken(model: str, given: dict[str, Any]) -> Any:
    """Return a model's output, which contains the model's name and its input."""
    match model:
        case "demo/text":
            asked = given["input"] if isinstance(given["input"], str) else given["input"][-1].get("content", "")
            part = {"type": "output_text", "text": f"you said: {asked}", "annotations": []}
            said = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
            return {"id": "resp_1", "object": "response", "status": "completed", "model": model, "output": [said]}
        case "demo/chat":
            message = {"role": "assistant", "content": f"you said: {given['messages'][-1].get('content')}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
        case "demo/embed":
            texts = given["input"] if isinstance(given["input"], list) else [given["input"]]
            data = [{"object": "embedding", "index": at, "embedding": [0.25, -0.5]} for at, _ in enumerate(texts)]
            return {"object": "list", "data": data}
    return {"created": 1, "data": [{"b64_json": "iVBORw0KGgo="} for _ in range(given["num_images"])]}


@pytest.fixture
def market() -> ServedMarket:
    return ServedMarket(spoken)


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual clock would jump to the next deadline while a thread works, so run thread work inline. Background
    loops are disabled because they would advance the clock."""

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await anyio.lowlevel.checkpoint()
        return act(*arguments)

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
    monkeypatch.setattr(Prices, "refresh_repeatedly", lambda _: anyio.sleep_forever())
    monkeypatch.setattr(LocalFiles, "remove_expired_repeatedly", lambda *_: anyio.sleep_forever())
