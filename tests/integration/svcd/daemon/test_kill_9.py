"""The daemon is killed with a job at each stage; the next one settles or fails them, once, and every unit is accounted
for.

Where a job stands is seen from outside: a proxy holds the call that the stage makes, or the model says that it runs.
"""

import sqlite3
from contextlib import closing, suppress

import anyio
import pytest

from common.bundle import BundleItem, bundle_input, read_bundle_output
from common.canonical_json import canonical
from svcd.journal.journal import JOURNAL_FILE
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.svcd.daemon.scene import Scene, until

CALLS = [
    ("claim", True),
    ("claim", False),
    ("fetch", True),
    ("files", False),
    ("release", True),
    ("release", False),
    ("settle", True),
    ("settle", False),
    ("fail", True),
    ("fail", False),
]


@pytest.mark.long
async def test_kill_at_each_stage_ends_every_job_once(
    scene: Scene,
) -> None:
    (scene.directory / "hang").touch()
    jobs, reached = {}, []
    for name, before in CALLS:
        malformed = canonical({"v": 2}) if name == "fail" else None
        word = "large" if name == "files" else "word"
        job = await scene.post(word, designated=name != "release", plaintext=malformed)
        jobs[name, before] = job
        about = await _named_in(scene, name, job)
        reached.append(scene.proxy.hold(name, about, before=before))
    jobs["run", True] = await scene.post("hang")

    async def runs() -> bool:
        return (scene.directory / "reached").exists()

    with scene.daemon() as daemon:
        with anyio.fail_after(60):
            for event in reached:
                await event.wait()
        await until(runs)
        daemon.kill()
        daemon.wait()
    (scene.directory / "hang").unlink()
    scene.proxy.abandon_held()
    with scene.daemon():
        for (name, before), job in jobs.items():
            row = await scene.ended(job)
            assert row["status"] == ("failed" if name == "fail" else "completed"), (name, before, scene.log)
            if name != "fail":
                assert (await scene.opened(row)).job_id == bytes.fromhex(job[2:])
    promised = [bytes.fromhex(job[2:]) for job in scene.posted]
    assert await all_violations(scene.database_url, scene.world.anvil.rpc_url, scene.book, promised=promised) == []


@pytest.mark.long
async def test_killed_inside_a_bundle_it_repeats_no_finished_item(scene: Scene) -> None:
    (scene.directory / "hang").touch()
    words = [*(f"word {n}" for n in range(20)), "hang"]
    items = [BundleItem({"input": word, "max_tokens": 5}, word) for word in words]
    job = await scene.post(plaintext=scene.envelope(bundle_input(items)))
    journal = scene.directory / "state" / JOURNAL_FILE

    async def only_one_is_left() -> bool:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as read:
            return read.execute("select count(*) from items").fetchone() == (len(items) - 1,)
        return False  # the daemon has not created its journal yet

    with scene.daemon() as daemon:
        await until(only_one_is_left)
        daemon.kill()
        daemon.wait()
    (scene.directory / "hang").unlink()
    with scene.daemon():
        row = await scene.ended(job)
    assert row["status"] == "completed", scene.log
    results = read_bundle_output((await scene.opened(row)).output)
    assert [(result.status, result.custom_id) for result in results] == [("completed", word) for word in words]
    finished = [f"{job}-{n}" for n in range(len(items) - 1)]
    assert sorted(run for run in scene.runs if run in finished) == sorted(finished)
    promised = [bytes.fromhex(job[2:])]
    assert await all_violations(scene.database_url, scene.world.anvil.rpc_url, scene.book, promised=promised) == []


async def _named_in(scene: Scene, call: str, job: str) -> str:
    """Return the part of a job's call that identifies the job."""
    match call:
        case "fetch":
            return str((await scene.row(job))["svc"]["task_cid"])
        case "files":
            return "purpose"  # the only upload
        case _:
            return job
