"""The real daemon with a real coordinator, from start to shutdown, also killed at each stage of a job and refused."""

import re
import signal
import sqlite3
from contextlib import closing, suppress

import anyio
import httpx
import pytest

from common.box import SecretKey
from common.bundle import BundleItem, bundle_input, read_bundle_output
from common.canonical_json import canonical
from common.scalars import hex_of
from svcd.journal.journal import JOURNAL_FILE
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.promtool import PROMTOOL, promtool
from tests.integration.svcd.daemon.scene import Scene, terminated, until


async def test_jobs_are_settled_and_shutdown_withdraws_asks(scene: Scene) -> None:
    checked = await scene.run("check")
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert "WRONG" not in checked.stdout
    for line in ("configuration", "coordinator", "clock", "domains", "session", "listed", "box key", "gateway"):
        assert f"\nright    {line}" in f"\n{checked.stdout}"
    identity = await scene.run("identity")
    assert (identity.returncode, identity.stderr) == (0, "")
    assert hex_of(scene.world.wallets.demo_provider.box_key) in identity.stdout
    base = f"http://127.0.0.1:{scene.metrics_port}"
    async with httpx.AsyncClient(base_url=base, trust_env=False) as daemon:
        with scene.daemon() as process:
            for designated in (True, False):
                row = await scene.ended(await scene.post(designated=designated))
                assert row["status"] == "completed", scene.log
                assert (await scene.opened(row)).output == {"input": "word"}
                assert row["svc"]["completion_tok"] == "3"
            health, metrics = await daemon.get("/healthz"), (await daemon.get("/metrics")).text
            assert (health.status_code, health.text) == (200, "ok\n")
            assert "\nsvcd_jobs_settled_total 2.0\n" in metrics
            assert '\nsvcd_jobs_failed_total{reason="sla_abandon"} 0.0\n' in metrics
            if PROMTOOL is not None:
                assert promtool("check", "metrics", stdin=metrics.encode()) == ""
            status = await scene.run("status")
            assert status.returncode == 0
            assert "journal: settled" in status.stdout
            assert await terminated(process) == 0
    assert await asks(scene) == []
    assert (await scene.run("status")).returncode == 1  # it has stopped


@pytest.mark.long
async def test_job_is_settled_within_two_blocks_of_its_order(scene: Scene) -> None:
    anvil = scene.world.anvil
    with scene.daemon():
        await scene.ended(await scene.post())  # the daemon is ready, and waits for jobs
        await anvil.mine_every(3)  # longer than a busy machine needs for a job
        try:
            ordered_at = int(await anvil.call("eth_blockNumber"), 16)
            row = await scene.ended(await scene.post())
            settled_at = int(await anvil.call("eth_blockNumber"), 16)
        finally:
            with anyio.CancelScope(shield=True):  # other tests share the chain
                await anvil.mine_every(0)
                await anvil.call("evm_setAutomine", True)
    assert row["status"] == "completed", scene.log
    assert settled_at - ordered_at <= 2


@pytest.mark.long
async def test_second_signal_exits_at_once_and_restart_resumes(scene: Scene) -> None:
    (scene.directory / "hang").touch()
    with scene.daemon() as process:
        job = await scene.post("hang")

        async def runs() -> bool:
            return (scene.directory / "reached").exists()

        await until(runs)
        process.send_signal(signal.SIGTERM)

        async def stopping() -> bool:
            return '"event": "stopping"' in scene.log

        await until(stopping)
        assert process.poll() is None
        assert await terminated(process) == 1
    (scene.directory / "hang").unlink()
    with scene.daemon():
        assert (await scene.ended(job))["status"] == "completed"


@pytest.mark.long
async def test_foreign_coordinator_is_refused_before_signing(scene: Scene) -> None:
    addresses = scene.directory / "addresses.json"
    addresses.write_text(addresses.read_text().replace('"chainId": 31337', '"chainId": 1'))
    checked = await scene.run("check")
    assert checked.returncode == 1
    assert "WRONG    domains" in checked.stdout
    run = await scene.run("run")
    assert run.returncode == 1
    error = run.stderr.splitlines()[-1]
    assert "serves another deployment than addresses_file: chain id: expected 1, reported 31337" in error


async def asks(scene: Scene) -> list[object]:
    answer = await scene.client.http.get("/evm/asks")
    listed: list[object] = answer.json()["asks"]
    return listed


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
async def test_kill_at_each_stage_ends_every_job_once(scene: Scene) -> None:
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


async def reasons(scene: Scene) -> dict[str, float]:
    """Return the reasons counted in the daemon's metrics."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"http://127.0.0.1:{scene.metrics_port}/metrics")).text
    counts = re.findall(r'^svcd_jobs_failed_total{reason="([^"]+)"} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in counts if float(count)}


async def until_counted(scene: Scene, expected: dict[str, float]) -> None:
    async def counted() -> bool:
        return await reasons(scene) == expected

    await until(counted)


@pytest.mark.long
async def test_job_ended_elsewhere_is_given_up(scene: Scene) -> None:
    (scene.directory / "hang").touch()
    scene.escrow = SecretKey.generate().public.raw
    with scene.daemon():
        unsealed, ended = await scene.post(designated=False), await scene.post("hang")

        async def runs() -> bool:
            return (scene.directory / "reached").exists()

        await until(runs)
        assert (await scene.ended(unsealed))["status"] == "failed", scene.log
        provider = scene.provider
        await provider.sign_in("provider")
        failed = await provider.http.post("/evm/ops", json=provider.fail(ended), headers=provider.authorization)
        assert failed.status_code == 201, failed.text
        (scene.directory / "hang").unlink()
        await until_counted(scene, {"unseal_failed": 1, "settle_NotClaimed": 1})


@pytest.mark.long
async def test_missing_escrow_or_room_fails_the_job(sparse_scene: Scene) -> None:
    scene = sparse_scene
    with scene.daemon():
        for job in (await scene.post(designated=False), await scene.post("large")):
            assert (await scene.ended(job))["status"] == "failed", scene.log
        await until_counted(scene, {"escrow_unavailable": 1, "settle_result_too_large": 1})
