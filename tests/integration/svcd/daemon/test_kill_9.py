"""The daemon is killed at each stage of a job; the next one settles or fails it, once, and every unit is accounted for.

Where it is killed is seen from outside: a proxy holds the call that the stage makes, or the model says that it runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from common.strict_json import canonical
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.svcd.daemon.scene import Scene, until

pytestmark = pytest.mark.anyio

CALLS = [
    ("claim", True),
    ("claim", False),
    ("fetch", True),
    ("release", True),
    ("release", False),
    ("settle", True),
    ("settle", False),
    ("fail", True),
    ("fail", False),
]


async def test_killed_at_any_stage_every_job_ends_once_and_every_unit_is_accounted_for(scene: Scene) -> None:
    for name, before in CALLS:
        malformed = canonical({"v": 2}) if name == "fail" else None
        with scene.daemon() as daemon, scene.proxy.hold(name, before=before) as reached:
            job = await scene.post(designated=name != "release", plaintext=malformed)
            with anyio.fail_after(30):
                await reached.wait()
            daemon.kill()
        with scene.daemon():
            row = await scene.ended(job)
            assert row["status"] == ("failed" if malformed else "completed"), (name, before, scene.log)
            if malformed is None:
                assert (await scene.opened(row)).output == {"input": "word"}
    async with killed_while_running(scene) as job:
        with scene.daemon():
            assert (await scene.ended(job))["status"] == "completed"
    promised = [bytes.fromhex(job[2:]) for job in scene.posted]
    assert await all_violations(scene.database_url, scene.world.anvil.rpc_url, scene.book, promised=promised) == []


@asynccontextmanager
async def killed_while_running(scene: Scene) -> AsyncIterator[str]:
    hang, reached = scene.directory / "hang", scene.directory / "reached"
    hang.touch()
    reached.unlink(missing_ok=True)

    async def is_reached() -> bool:
        return reached.exists()

    with scene.daemon() as daemon:
        job = await scene.post()
        await until(is_reached)
        daemon.kill()
    hang.unlink()
    yield job
