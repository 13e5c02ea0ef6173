import attrs
import httpx
import trio

from common.daemon.operators_port import bind_operators_port
from svcd.stages.health import DaemonHealth, serve_metrics


@attrs.define
class Journal:
    is_working: bool = True


async def test_health_follows_the_journal_and_series_exist() -> None:
    journal = Journal()
    health = DaemonHealth(journal)  # type: ignore[arg-type]
    with bind_operators_port("127.0.0.1", 0, "PORT") as bound:
        async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as http:
            nursery.start_soon(serve_metrics, health, bound)
            base = f"http://127.0.0.1:{bound.getsockname()[1]}"
            assert (await http.get(f"{base}/healthz")).status_code == 503  # not ready yet
            health.expect_polls("m", 2.0)
            healthy = await http.get(f"{base}/healthz")
            assert (healthy.status_code, healthy.text) == (200, "ok\n")
            journal.is_working = False
            unhealthy = await http.get(f"{base}/healthz")
            assert (unhealthy.status_code, unhealthy.text) == (503, "unhealthy\n")
            assert unhealthy.headers["x-svcd-reason"] == "the journal cannot be read or written"
            metrics = await http.get(f"{base}/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            for name in (
                "svcd_jobs_claimed_total 0.0",
                "svcd_jobs_settled_total 0.0",
                "svcd_capacity_granted",
                "svcd_asks",
            ):
                assert name.partition(" ")[0] in metrics.text
            assert (await http.get(f"{base}/other")).status_code == 404
            assert (await http.post(f"{base}/metrics")).status_code == 405
            nursery.cancel_scope.cancel()
