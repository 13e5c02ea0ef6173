"""Ends of batches with unsettled lines: refused lines, cancels, windows that end first."""

from collections.abc import AsyncIterator

import anyio
import attrs
import pytest

from coordinatord.api.batches.worker import BatchWorker
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.queue_sql import take_relays
from coordinatord.run import app
from devnet.world import World
from tests.integration.coordinatord.relayer.running import BOOK, submit
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.new_wallets import fund, wallet_with
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged, until
from tests.support.invariants.batches import broken_batches

END_WINDOW = "update batches set expires_at = clock_timestamp() where id = $1"


async def errors(batching: Batching, batch: Body) -> list[tuple[int, str, str | None]]:
    """Return (line, code, job id) of each error."""
    lines = await batching.lines(batch["error_file_id"])
    return [(line["svc"]["line"], line["error"]["code"], line["svc"]["job_id"]) for line in lines]


async def turn_all(worker: BatchWorker, stage: Stage) -> None:
    """Process every batch until none is due."""
    await stage.execute("update batch_work set due_at = clock_timestamp()")
    while await worker.run_step():
        pass


@pytest.fixture
async def quiet(world: World, database_url: str, seen: list[Seen]) -> AsyncIterator[Stage]:
    """A coordinator without running relayer and batch workers. The test does their steps by hand."""
    async with staged(world, configured(world, database_url), seen, relayer=False) as stage:
        yield stage


async def quiet_batching(world: World, quiet: Stage) -> Batching:
    owner = Party.at(world.wallets.with_role("client")[0], quiet.ground.config.addresses, quiet.http)
    await owner.sign_in()
    return await Batching.of(quiet, owner)


async def test_lines_that_chain_or_store_refuse_are_named(batching: Batching, client: Party, stage: Stage) -> None:
    lines = batching.submitter
    good, before, of_code = lines.line(), await client.paid(), lines.line()
    assert (await stage.http.post("/v1/jobs", json=before)).status_code == 201
    upload = await batching.upload_container()
    named = {name: value for name, value in lines.of_container(upload.content).items() if name != "container"}
    other = {name: value for name, value in lines.line().items() if name != "container"}
    created = await batching.create(
        good,
        good,
        lines.line(model_id=999),
        lines.line(sla_secs=7),
        before,
        {**other, "container_cid": "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"},
        {**other, "container_cid": upload.cid},
        {**named, "container_cid": upload.cid},
    )
    posted = await batching.until(created["id"], status="in_progress", counts=(0, 6, 8))
    kept = "select attached from files where cid = $1"
    assert await stage.fetchval(kept, upload.cid)
    for job in (good["job_id"], named["job_id"]):
        assert (await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))).status_code == 200
    done = await batching.until(posted["id"], status="completed")
    assert await errors(batching, done) == [
        (1, "cancelled", good["job_id"]),
        (2, "duplicate_job_id", good["job_id"]),
        (3, "invalid_model", (await errors(batching, done))[2][2]),
        (4, "SlaNotAllowed", (await errors(batching, done))[3][2]),
        (5, "DuplicateJob", before["job_id"]),
        (6, "unknown_container", other["job_id"]),
        (7, "commitment_mismatch", other["job_id"]),
        (8, "cancelled", named["job_id"]),
    ]
    assert done["output_file_id"] is None

    await stage.world.anvil.call("anvil_setCode", client.address, "0x6001")
    done = await batching.until((await batching.create(of_code))["id"], status="completed")
    assert await errors(batching, done) == [(1, "payer_has_code", of_code["job_id"])]


async def test_batch_adopts_a_line_posted_before_failover(batching: Batching, client: Party, stage: Stage) -> None:
    """The failover lost the relay, so the line is posted again and refused as a duplicate."""
    line = await client.paid()
    assert (await stage.http.post("/v1/jobs", json=line)).status_code == 201
    await stage.execute("update server_epoch set since = clock_timestamp() + interval '1 hour'")
    created = await batching.create(line)
    while not await stage.fetchval("select count(*) from relays where reason = 'DuplicateJob'"):  # noqa: ASYNC110 - the relayer's event
        await anyio.sleep(0.02)
    job = line["job_id"]
    assert (await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))).status_code == 200
    done = await batching.until(created["id"], status="completed")
    assert await errors(batching, done) == [(1, "cancelled", job)]


@shows("POST /v1/batches/{id}/cancel", 200)
@shows("POST /v1/batches/{id}/cancel", 400, "batch_not_cancellable")
async def test_cancel_posts_no_more_and_takes_back_what_waits(world: World, quiet: Stage) -> None:
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    queued, untouched = batching.submitter.lines(2), batching.submitter.lines(2)
    first = await batching.create(*queued)
    assert await worker.run_step()
    second = await batching.create(*untouched)
    for batch in (first, second):
        cancelled = await batching.cancel(batch["id"])
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelling")
        assert int(cancelled.json()["as_of_block"]) > 0
        again = (await batching.cancel(batch["id"])).json()
        assert again["cancelling_at"] == cancelled.json()["cancelling_at"]
    await turn_all(worker, quiet)
    await turn_all(worker, quiet)
    one, two = [(await batching.get(f"/{batch['id']}")).json() for batch in (first, second)]
    assert (one["status"], two["status"]) == ("cancelled", "cancelled")
    assert [code for _, code, _ in await errors(batching, one) + await errors(batching, two)] == ["cancelled"] * 4
    assert await quiet.fetchval("select count(*) from relays where state <> 'dropped'") == 0
    refused = await batching.cancel(first["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "batch_not_cancellable")
    assert await broken_batches(quiet.ground.database, quiet.ground.pins) == []


async def test_cancel_takes_back_what_waits_before_the_rest_is_read(world: World, quiet: Stage) -> None:
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    worker = attrs.evolve(worker, expander=attrs.evolve(worker.expander, max_lines=2))
    batch = (await batching.create(*batching.submitter.lines(6)))["id"]
    assert await worker.run_step()
    await batching.cancel(batch)
    assert await worker.run_step()
    assert await quiet.fetchval("select not expanded from batch_work")
    assert await quiet.fetchval("select array_agg(state::text) from relays") == ["dropped"] * 2


async def test_cancel_is_idempotent_until_files_are_written(world: World, quiet: Stage) -> None:
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    batch = (await batching.create(b"no json"))["id"]
    first = (await batching.cancel(batch)).json()
    while await quiet.fetchval("select ends_as is null from batches"):
        assert await worker.run_step()
    again = await batching.cancel(batch)
    assert again.status_code == 200
    assert (again.json()["status"], again.json()["cancelling_at"]) == ("cancelling", first["cancelling_at"])
    assert await worker.run_step()
    assert (await batching.cancel(batch)).status_code == 400


async def test_cancelled_batch_follows_what_is_on_the_chain_to_its_end(
    batching: Batching, client: Party, provider: Party, stage: Stage
) -> None:
    line = batching.submitter.line()
    created = await batching.create(line)
    await batching.until(created["id"], status="in_progress")
    while (await stage.http.get(f"/v1/jobs/{line['job_id']}")).status_code != 200:
        pass
    assert (await batching.cancel(created["id"])).json()["status"] == "cancelling"
    assert (await provider.run(provider.claim(line["job_id"]))).status_code == 201
    assert (await batching.get(f"/{created['id']}")).json()["status"] == "cancelling"
    assert (await provider.run(provider.settle(line["job_id"], result="AAAA"))).status_code == 201
    done = await batching.until(created["id"], status="cancelled", counts=(1, 0, 1))
    (output,) = await batching.lines(done["output_file_id"])
    assert output["svc"]["job_id"] == line["job_id"]


async def test_window_that_ends_first_ends_every_line(
    batching: Batching, client: Party, provider: Party, stage: Stage
) -> None:
    claimed, waits = batching.submitter.lines(2)
    created = await batching.create(claimed, waits)
    for line in (claimed, waits):
        while (await stage.http.get(f"/v1/jobs/{line['job_id']}")).status_code != 200:
            pass
    assert (await provider.run(provider.claim(claimed["job_id"]))).status_code == 201
    await stage.execute(END_WINDOW, created["id"])
    done = await batching.until(created["id"], status="expired", counts=(0, 2, 2))
    assert done["finalizing_at"] <= done["expired_at"]
    assert await errors(batching, done) == [(1, "expired", claimed["job_id"]), (2, "expired", waits["job_id"])]


async def test_window_end_ends_unposted_lines(world: World, quiet: Stage) -> None:
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    queued, unread = await batching.create(*batching.submitter.lines(1)), await batching.create(b"no json")
    await worker.run_step()
    for batch in (queued, unread):
        await quiet.execute(END_WINDOW, batch["id"])
    await turn_all(worker, quiet)
    await turn_all(worker, quiet)
    for batch in (queued, unread):
        done = (await batching.get(f"/{batch['id']}")).json()
        assert (done["status"], [code for _, code, _ in await errors(batching, done)]) == ("expired", ["expired"])
    assert await quiet.fetchval("select count(*) from relays where state <> 'dropped'") == 0


async def test_lines_whose_jobs_end_without_a_result_say_how(batching: Batching, stage: Stage) -> None:
    lines = batching.submitter.lines(3)
    created = await batching.create(*lines)
    # Bring about quickly what otherwise takes hours: a missed window, a recorded expiry, an expiry that comes with a
    # block.
    ends = (
        "update jobs set state = 3, ended_because = 4 where job_id = $1",
        "update jobs set state = 3, ended_because = 5 where job_id = $1",
        "update jobs set expires_at = 0 where job_id = $1",
    )
    for line, end in zip(lines, ends, strict=True):
        await until(lambda line=line: stage.http.get(f"/v1/jobs/{line['job_id']}"), 200)  # type: ignore[misc]
        await stage.execute(end, bytes.fromhex(line["job_id"][2:]))
    await stage.world.anvil.call("evm_mine")
    done = await batching.until(created["id"], status="completed", counts=(0, 3, 3))
    assert [code for _, code, _ in await errors(batching, done)] == ["reclaim", "expired", "expired"]


async def test_dropped_post_is_queued_again_as_one_relay(world: World, quiet: Stage) -> None:
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    await batching.create(*batching.submitter.lines(3))
    await worker.run_step()
    await quiet.execute("update relays set state = 'dropped', reason = 'relayer_funds', ended_at = now()")
    await turn_all(worker, quiet)
    assert await quiet.fetchval("select array_agg(state::text) from relays") == ["queued"] * 3


DROP = "update relays set state = 'dropped', reason = 'relayer_funds', ended_at = now() where priority = 3"
STATES = "select array_agg(state::text order by id) from relays where priority = 3"


async def test_dropped_posts_return_within_the_gas_budget(world: World, database_url: str) -> None:
    gas = attrs.asdict(attrs.evolve(GasPolicy.from_daily_gas(450_000, 2_000_000_000), hourly_percent=100))
    config = configured(world, database_url, gas=gas)
    async with staged(world, config, [], relayer=False) as quiet:
        batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
        await batching.create(*batching.submitter.lines(3))
        await worker.run_step()
        assert await quiet.fetchval(STATES) == ["queued"] * 3
        await quiet.execute(DROP)
        # Another post uses up the room in the budget.
        await quiet.execute(BOOK, batching.owner.wallet.address, 150_000, 0)
        await turn_all(worker, quiet)
        assert await quiet.fetchval(STATES) == ["queued", "queued", "dropped"]
        await turn_all(worker, quiet)
        assert await quiet.fetchval(STATES) == ["queued", "queued", "dropped"]
        await quiet.execute("delete from gas_bookings")
        await turn_all(worker, quiet)
        assert await quiet.fetchval(STATES) == ["queued"] * 3


async def test_dropped_posts_return_within_the_balance(world: World, quiet: Stage) -> None:
    poor = await wallet_with(quiet, 0)
    await poor.sign_in()
    batching, worker = await Batching.of(quiet, poor), app.build_batch_worker(quiet.ground)
    lines = batching.submitter.lines(2)
    amount = int(lines[0]["amount"])
    await fund(quiet, poor, amount * 5 // 2)
    await batching.create(*lines)
    await worker.run_step()
    assert await quiet.fetchval(STATES) == ["queued"] * 2
    await quiet.execute(DROP)
    other = (
        "insert into relays (kind, subject, dedupe, target, calldata, priority, signer, amount)"
        " values ('post', '\\x01', '\\x01', '\\x01', '', 2, $1, $2)"
    )
    await quiet.execute(other, poor.wallet.address, amount)
    await turn_all(worker, quiet)
    assert await quiet.fetchval(STATES) == ["queued", "dropped"]
    await quiet.execute("update relays set state = 'dropped' where priority = 2")
    await turn_all(worker, quiet)
    assert await quiet.fetchval(STATES) == ["queued"] * 2


async def test_posts_of_batches_leave_the_queue_of_requests_alone(world: World, quiet: Stage) -> None:
    depth = quiet.ground.config.relay_max_depth
    batching, worker = await quiet_batching(world, quiet), app.build_batch_worker(quiet.ground)
    await batching.create(*batching.submitter.lines(depth + 1))
    await worker.run_step()
    assert await quiet.fetchval("select count(*) from relays where state = 'queued'") == depth + 1
    lone = NewRelay(RelayKind.POST, b"\1" * 32, b"lone", b"\2" * 20, b"", Priority.POST)
    async with quiet.ground.database.connection() as connection:
        assert isinstance(await submit(connection, lone, max_depth=depth), QueuedRelay)
        taken = [relay.id for relay in await take_relays(connection, 512, 5)]
        rows = await connection.fetch("select priority from relays where id = any($1) order by priority", taken)
    assert [row["priority"] for row in rows] == [Priority.POST, *[Priority.BATCH_POST] * 5]
