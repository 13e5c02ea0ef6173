"""Run the devnet's language model: SmolLM2 on llama.cpp, which `make model` installs into `.model`."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import httpx

from devnet.child import Child, Program, run_program
from devnet.errors import DevnetError
from devnet.ports import LOOPBACK, pick_free

SMOLLM: Final = "smollm"
MODEL_FOLDER: Final = Path(__file__).parents[1] / ".model"
_SERVER_SCRIPT: Final = Path(__file__).with_name("model_server.py")
_START_TIMEOUT_S: Final = 90


@attrs.frozen
class ModelService:
    base_url: str
    child: Child


def is_installed() -> bool:
    return (MODEL_FOLDER / ".ready").exists()


@asynccontextmanager
async def running_model(logs: Path) -> AsyncIterator[ModelService]:
    if not is_installed():
        raise DevnetError('the model smollm is not installed: run "make model" (130 MB)')
    port = pick_free()
    command = (sys.executable, str(_SERVER_SCRIPT), str(port))
    program = Program("model server", command, logs / "model.log", environment={"PYTHONPATH": str(MODEL_FOLDER)})
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as client:
        service = ModelService(f"http://{LOOPBACK}:{port}", child)

        async def answers() -> bool:
            try:
                await client.get(service.base_url)
            except httpx.TransportError:
                return False
            return True

        await child.wait_until(answers, seconds=_START_TIMEOUT_S)
        yield service
