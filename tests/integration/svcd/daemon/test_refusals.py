"""Jobs that end without a settle because of the coordinator, the escrow or the chain."""

import re

import httpx
import pytest

from common.box import SecretKey
from tests.integration.svcd.daemon.scene import Scene, until


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
async def test_job_ended_elsewhere_is_given_up(
    scene: Scene,
) -> None:
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
