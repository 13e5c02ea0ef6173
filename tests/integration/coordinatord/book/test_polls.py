from functools import partial

import anyio
import pytest

from coordinatord.base.metrics import REGISTRY
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage
from tests.integration.coordinatord.scene.streams import streams_of

pytestmark = pytest.mark.anyio


async def poll(who: Party, query: str) -> list[str]:
    answer = await who.http.get(f"/evm/jobs?{query}", headers=who.authorization)
    assert answer.status_code == 200, answer.text
    return [job["job_id"] for job in answer.json()["jobs"]]


async def test_poll_leases_the_oldest_and_nobody_else_gets_them(client: Party, provider: Party, rival: Party) -> None:
    jobs = [(await client.post())["job_id"] for _ in range(3)]
    assert await poll(provider, "state=Open&model=1&free=2") == jobs[:2]
    assert await poll(rival, "state=Open&model=1&free=5") == jobs[2:]
    assert await poll(provider, "state=Open&model=1&free=2") == jobs[:2]
    assert await poll(provider, "state=Open&model=1&free=0") == jobs[:2]


async def test_poll_leases_the_oldest_and_honours_order(client: Party, provider: Party) -> None:
    jobs = [(await client.post())["job_id"] for _ in range(3)]
    newest = "state=Open&model=1&order=newest"
    assert await poll(provider, f"{newest}&free=2") == jobs[1::-1]
    assert await poll(provider, f"{newest}&free=3") == jobs[::-1]
    assert await poll(provider, f"{newest}&free=3&limit=1&offset=1") == [jobs[1]]


async def test_lapsed_lease_goes_to_who_polls_next(client: Party, provider: Party, rival: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    assert await poll(provider, "state=Open&model=1&free=1") == [job]
    await stage.execute("update leases set expires_at = clock_timestamp() - interval '1 second'")
    assert await poll(rival, "state=Open&model=1&free=1") == [job]
    assert await poll(provider, "state=Open&model=1&free=1") == []


async def test_poll_gives_no_job_that_is_designated_to_another(client: Party, provider: Party, rival: Party) -> None:
    mine = (await client.post(designated=1))["job_id"]
    assert await poll(rival, "state=Open&model=1&free=5") == []
    assert await poll(provider, "state=Open&model=1&free=5") == [mine]


@shows("GET /evm/jobs", 401, "invalid_session")
@shows("GET /evm/jobs", 403, "not_registered")
@shows("GET /evm/jobs", 400, "invalid_request_error")
async def test_poll_needs_a_provider_session_state_and_model(client: Party, provider: Party, stage: Stage) -> None:
    await client.sign_in()
    whole = "state=Open&model=1&free=1"
    for who, query, status, told in (
        (None, whole, 401, "invalid_session"),
        (client, whole, 403, "not_registered"),
        (provider, "model=1&free=1", 400, "state"),
        (provider, "state=Claimed&model=1&free=1", 400, "state"),
        (provider, "state=Open&free=1", 400, "model"),
        (provider, "state=Open&model=777&free=1", 400, "model"),
        (provider, "state=Open&model=1&free=4294967296", 400, "free"),
    ):
        headers = who.authorization if who is not None else {}
        answer = await stage.http.get(f"/evm/jobs?{query}", headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"] or error["param"]) == (status, told), query


async def test_poll_is_told_everything_that_it_lacks(provider: Party, stage: Stage) -> None:
    for query, message in (
        ("free=1", "`free` requires `state=Open`; `free` requires `model`"),
        ("free=x&model=-1", "model must be a decimal"),
    ):
        answer = await stage.http.get(f"/evm/jobs?{query}", headers=provider.authorization)
        assert answer.json()["error"]["message"].startswith(message), query
    assert "; free must be a decimal" in answer.json()["error"]["message"]


async def test_session_is_ignored_without_free(provider: Party, stage: Stage) -> None:
    headers = {"authorization": "Bearer nonsense"}
    assert (await stage.http.get("/evm/jobs", headers=headers)).status_code == 200


async def test_polling_makes_a_provider_without_ask_a_candidate(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    await provider.publish(provider.asks(1, (1, 3600, 5, 7)))
    await rival.publish(rival.asks(2, (1, 3600, 4, 7)))
    probe = {"model_id": 1, "sla_secs": 3600, "units_in": 10, "units_out": 10}

    async def candidates(body: dict[str, object]) -> list[str]:
        answer = await stage.http.post("/v1/jobs", json=body)
        assert answer.status_code == 402
        return [candidate["provider_id"] for candidate in answer.json()["candidates"]]

    assert await candidates(probe) == []
    for who in (provider, rival):
        await poll(who, "state=Open&model=1&free=1")
    assert await candidates(probe) == ["2", "1"]
    assert await candidates(probe | {"designated": 1}) == ["1"]
    assert await candidates(probe | {"sla_secs": 60}) == []
    assert await candidates(client.order(rate_in=4, rate_out=7)) == ["2"]
    assert await candidates(client.order(rate_in=5, rate_out=7)) == ["2", "1"]
    assert await candidates(client.order(rate_in=3, rate_out=7)) == []
    await stage.execute("update liveness set seen_at = seen_at - interval '1 minute' where provider_id = 2")
    assert await candidates(probe) == ["1"]


async def test_among_equal_prices_the_least_recently_picked_is_first(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    for who, number in ((provider, 1), (rival, 2)):
        await who.publish(who.asks(number, (1, 3600, 5, 7)))
        await poll(who, "state=Open&model=1&free=1")
    probe = {"model_id": 1, "sla_secs": 3600, "units_in": 10, "units_out": 10}
    firsts = []
    for _ in range(3):
        answer = (await stage.http.post("/v1/jobs", json=probe)).json()
        assert "quote" not in answer
        first = answer["candidates"][0]
        firsts.append(first["provider_id"])
        await client.post(designated=int(first["provider_id"]))
    assert firsts == ["1", "2", "1"]


WAITING = "/evm/jobs?state=Open&model=1&free=1&wait=30"


async def test_poll_that_waits_is_answered_with_the_first_job_for_it(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    """Two polls wait. The job answers one of them, and the other continues to wait."""
    answered: dict[str, list[str]] = {}

    async def wait(name: str, who: Party, more: str = "") -> None:
        answer = await who.http.get(WAITING + more, headers=who.authorization)
        assert answer.status_code == 200, answer.text
        answered[name] = [job["job_id"] for job in answer.json()["jobs"]]

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "too dear", rival, "&min_rate_in=2000000")
            tasks.start_soon(wait, "first", provider)
            await waiting(stage, 2)
            cheap = (await client.post())["job_id"]
            with anyio.fail_after(15):
                while "first" not in answered:  # noqa: ASYNC110 - there is no event to wait for
                    await anyio.sleep(0.01)
            assert answered == {"first": [cheap]}
            dear = (await client.post(rate_in=3_000_000))["job_id"]
    assert answered == {"first": [cheap], "too dear": [dear]}
    assert await stage.fetchval("select count(*) from leases") == 2


async def test_provider_that_waits_is_live_until_it_is_answered(client: Party, provider: Party, stage: Stage) -> None:
    seen = "select extract(epoch from clock_timestamp() - seen_at)::float8 from liveness where provider_id = 1"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.http.get, WAITING)  # refused without a session, so no provider counts as live
        tasks.start_soon(partial(provider.http.get, WAITING, headers=provider.authorization))
        with anyio.fail_after(15):
            while await stage.fetchval(seen) is None:  # noqa: ASYNC110 - the table tells nobody
                await anyio.sleep(0.05)
        await stage.execute("update liveness set seen_at = seen_at - interval '1 hour'")
        with anyio.fail_after(15):
            while float(str(await stage.fetchval(seen))) > 60:  # noqa: ASYNC110 - the table tells nobody
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


async def test_poll_whose_caller_is_gone_leases_nothing(
    client: Party, provider: Party, stage: Stage, seen: list[Seen]
) -> None:
    async with streams_of(stage, seen) as streams:
        with anyio.move_on_after(0.5):
            await streams.http.get(WAITING, headers=provider.authorization)
        await waiting(stage, 0)
        await client.post()
    assert await stage.fetchval("select count(*) from leases") == 0


@pytest.mark.parametrize("query", ["free=0&wait=30", "free=1&wait=1", "free=1"])
async def test_poll_without_room_or_time_is_empty(provider: Party, query: str) -> None:
    with anyio.fail_after(10):
        assert await poll(provider, f"state=Open&model=1&{query}") == []


async def test_wait_is_bounded(provider: Party) -> None:
    answer = await provider.http.get(WAITING.replace("30", "31"), headers=provider.authorization)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "wait")


async def test_stop_answers_polls_that_wait(provider: Party, stage: Stage) -> None:
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poll, provider, "state=Open&model=1&free=1&wait=30")
            await waiting(stage, 1)
            stage.ground.events.close()


async def waiting(stage: Stage, polls: int) -> None:
    """Wait until this many polls wait."""
    with anyio.fail_after(15):
        while REGISTRY.get_sample_value("coordinatord_event_listeners", {"kind": "poll"}) != polls:  # noqa: ASYNC110
            await anyio.sleep(0.01)
