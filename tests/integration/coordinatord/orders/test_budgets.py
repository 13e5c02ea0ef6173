"""Limits on what strangers can make the relayer spend, promise and store, on a real chain."""

import secrets
from typing import Any

import anyio
import httpx
import pytest
from eth_account import Account

from common.scalars import base64_of
from coordinatord.base.metrics import REGISTRY
from devnet.contracts import connect_to_chain, contract_at
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.new_wallets import fund, wallet_with
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Stage

COST = 3_000 + 75 + 2_000  # of a job from `Party.order`: cap, fee and gas fee
ROOM = 20_000  # bytes
BUSY = (429, "busy", "true", True)
Refusal = tuple[int, str, str, bool]


@pytest.fixture
def stage_settings() -> dict[str, object]:
    """Estimates leave room for two posts under way. The gas actually used leaves no room for a third."""
    return {
        "gas": {
            "posts_daily_gas": 300_000,
            "work_daily_gas": 1,
            "upkeep_daily_gas": 50_000_000,
            "unlisted_upkeep_daily_gas": 1_500_000,
            "newcomers_daily_gas": 2_000_000_000,
            "daily_gas_per_settled_job": 1_000_000,
            "hourly_percent": 100,
        },
        "storage": {"max_newcomer_bytes": ROOM, "max_newcomer_rows": 0, "max_earner_bytes": 0, "max_earner_rows": 0},
    }


@pytest.fixture
async def newcomer(stage: Stage) -> Party:
    """Return a wallet without any history."""
    return await wallet_with(stage, 1_000_000)


async def indexed(stage: Stage, query: str, *arguments: object) -> None:
    with anyio.fail_after(60):
        while not await stage.fetchval(query, *arguments):  # noqa: ASYNC110 - the index tells nobody
            await anyio.sleep(0.02)


def refusal(answer: httpx.Response) -> Refusal:
    told = answer.json()["error"]
    return answer.status_code, told["type"], answer.headers["x-svc-retryable"], int(answer.headers["retry-after"]) > 0


def code(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json().get("error", {}).get("code")


# --- gas -----------------------------------------------------------------------------------------------------


async def test_new_wallet_is_limited_by_its_budget(newcomer: Party, stranger: Party, stage: Stage) -> None:
    over = await newcomer.paid()
    job = (await newcomer.post())["job_id"]
    await newcomer.post()
    stored = await stage.fetchval("select count(*) from objects")
    commitment = over["c"][2:].encode()
    asked: list[bool] = []

    def note(request: httpx.Request) -> httpx.Response | None:
        asked.append(commitment in request.content)
        return None

    with stage.node.answering(note):
        answer = await stage.http.post("/v1/jobs", json=over)
    assert refusal(answer) == BUSY
    assert not any(asked)
    assert await stage.fetchval("select count(*) from objects") == stored
    assert (await stranger.post())["job_id"], "another wallet is served as before"
    assert (await stage.http.post(f"/v1/jobs/{job}/cancel", json=newcomer.cancel(job))).status_code == 200


async def test_settled_job_raises_budgets_and_exits_always_pass(newcomer: Party, provider: Party, stage: Stage) -> None:
    first, second = [(await newcomer.post())["job_id"] for _ in range(2)]
    assert (await provider.run(provider.claim(first))).status_code == 201
    assert refusal(await provider.run(provider.claim(second))) == BUSY
    settled = await provider.run(provider.settle(first, result=base64_of(b"result")))
    assert settled.status_code == 201, settled.text
    assert (await newcomer.post())["job_id"]
    assert (await provider.run(provider.claim(second))).status_code == 201
    assert (await provider.run(provider.fail(second))).status_code == 201
    assert await booked_by_kind(stage) == {"post", "claim", "settle", "fail"}
    assert await stage.fetchval("select sum(gas)::bigint from gas_bookings") == await gas_of_the_relayer(stage)


async def booked_by_kind(stage: Stage) -> set[str]:
    kinds = await stage.fetchval("select array_agg(distinct kind) from gas_bookings")
    assert isinstance(kinds, list)
    return set(kinds)


async def gas_of_the_relayer(stage: Stage) -> int:
    """Return the gas that the relayer's transactions used, as recorded on the chain."""
    total = 0
    async with stage.ground.database.connection() as connection:
        rows = await connection.fetch("select mined_hash from relay_txs where mined_hash is not null")
    for row in rows:
        receipt = await stage.world.anvil.call("eth_getTransactionReceipt", "0x" + row["mined_hash"].hex())
        total += int(receipt["gasUsed"], 16)
    return total


async def test_unlisted_provider_has_a_small_budget(stage: Stage, provider: Party) -> None:
    secret = secrets.token_bytes(32)
    unlisted = await wallet_with(stage, 0, secret)
    await stage.world.anvil.call("anvil_setBalance", unlisted.address, hex(10**18))
    async with connect_to_chain(stage.world.anvil.rpc_url) as chain:
        account: Any = Account.from_key(secret)
        registry = contract_at(chain, "ProviderRegistry", stage.world.market.providers)
        built = await registry.functions.register().build_transaction({"from": account.address, "nonce": 0})
        await chain.web3.eth.send_raw_transaction(account.sign_transaction(built).raw_transaction)
    await indexed(stage, "select true from providers where operator = $1", unlisted.wallet.address)
    await unlisted.sign_in("provider")
    evidence = b"\x01" * 32_768
    first = await unlisted.run(unlisted.set_identity(unlisted.box_key, evidence))
    assert first.status_code == 201, first.text
    assert refusal(await unlisted.run(unlisted.set_identity(unlisted.box_key, evidence))) == BUSY
    provider_id = await stage.fetchval("select provider_id from providers where operator = $1", unlisted.wallet.address)
    assert isinstance(provider_id, int)
    quotes = [(1, sla, 1, 1) for sla in range(64)]
    assert refusal(await unlisted.publish(unlisted.asks(provider_id, *quotes))) == BUSY
    listed = await provider.run(provider.set_identity(provider.box_key, evidence))
    assert listed.status_code == 201, listed.text


# --- money ---------------------------------------------------------------------------------------------------


async def test_balance_backs_the_jobs_that_it_can_pay_and_no_more(stage: Stage) -> None:
    poor = await wallet_with(stage, COST + COST // 2)
    first = (await poor.post())["job_id"]
    refused = await stage.http.post("/v1/jobs", json=await poor.paid())
    assert code(refused) == (409, "InsufficientBalance")
    assert f"{poor.address} holds {COST + COST // 2} base units" in refused.json()["error"]["message"]
    assert (await stage.http.post(f"/v1/jobs/{first}/cancel", json=poor.cancel(first))).status_code == 200
    assert (await poor.post())["job_id"], "a cancelled job promises nothing"


async def test_empty_wallet_is_told_what_to_send_and_where(stage: Stage) -> None:
    empty = await wallet_with(stage, 0)
    refused = await stage.http.post("/v1/jobs", json=await empty.paid())
    assert code(refused) == (409, "InsufficientBalance")
    said = f"the job may cost {COST} and {empty.address} holds 0 base units of the payment token: send at least {COST}"
    assert refused.json()["error"]["message"] == f"{said} to {empty.address}"


async def test_of_two_posts_at_once_on_one_balance_one_is_taken(stage: Stage) -> None:
    poor = await wallet_with(stage, COST + COST // 2)
    bodies = [await poor.paid() for _ in range(2)]
    ends: list[tuple[int, str | None]] = []

    async def submit(body: Body) -> None:
        ends.append(code(await stage.http.post("/v1/jobs", json=body)))

    async with anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(submit, body)
    assert sorted(ends) == [(201, None), (409, "InsufficientBalance")]


# --- batches -------------------------------------------------------------------------------------------------


async def test_lines_over_the_gas_budget_wait_for_room(stage: Stage, newcomer: Party) -> None:
    await newcomer.sign_in()
    batching = await Batching.of(stage, newcomer)
    created = await batching.create(*batching.submitter.lines(5))
    await batching.until(created["id"], status="in_progress", counts=(0, 0, 2))
    await indexed(stage, "select count(*) = 2 from relays where state = 'mined'")
    await stage.execute("delete from gas_bookings")
    await batching.until(created["id"], counts=(0, 0, 4))
    await indexed(stage, "select count(*) = 4 from relays where state = 'mined'")
    await stage.execute("update batches set expires_at = clock_timestamp()")
    done = await batching.until(created["id"], status="expired")
    assert {line["error"]["code"] for line in await batching.lines(done["error_file_id"])} == {"expired"}
    assert await stage.fetchval("select count(*) from relays where kind = 'post'") == 4


async def test_line_beyond_the_balance_ends_as_such(stage: Stage) -> None:
    poor = await wallet_with(stage, 0)
    await poor.sign_in()
    batching = await Batching.of(stage, poor)
    lines = batching.submitter.lines(2)
    await fund(stage, poor, int(lines[0]["amount"]) * 3 // 2)
    created = await batching.create(*lines)
    await batching.until(created["id"], status="in_progress", counts=(0, 1, 2))
    codes = await stage.fetchval("select array_agg(code order by line) from batch_lines")
    assert codes == [None, "InsufficientBalance"]


# --- storage -------------------------------------------------------------------------------------------------


async def test_files_of_a_new_wallet_are_bounded_and_room_comes_back(stage: Stage, newcomer: Party) -> None:
    await newcomer.sign_in()
    half = b"x" * (ROOM // 2 + 1000)
    assert (await newcomer.upload("result", half)).status_code == 200
    assert refusal(await newcomer.upload("result", half)) == BUSY
    assert await stage.fetchval("select count(*) from files") == 1
    await stage.sweep()
    assert REGISTRY.get_sample_value("coordinatord_stored_bytes", {"kind": "results"}) == len(half)
    await stage.execute("update files set expires_at = clock_timestamp() - interval '1 second'")
    await stage.sweep()
    assert REGISTRY.get_sample_value("coordinatord_stored_bytes", {"kind": "results"}) == 0
    assert (await newcomer.upload("result", half)).status_code == 200


async def test_inline_containers_count_for_their_owner(stage: Stage, newcomer: Party) -> None:
    payload = b"x" * (ROOM // 2 + 1000)
    await newcomer.post(container=newcomer.container(payload))
    assert refusal(await stage.http.post("/v1/jobs", json=await newcomer.paid(newcomer.container(payload)))) == BUSY
    assert await stage.fetchval("select count(*) from relays") == 1


async def test_files_of_a_batch_without_a_result_are_kept_for_days(stage: Stage, newcomer: Party) -> None:
    await newcomer.sign_in()
    batching = await Batching.of(stage, newcomer)
    created = await batching.create(b"{}", b"no json")
    done = await batching.until(created["id"], status="completed")
    config = stage.ground.config
    assert await told_life(newcomer, created["input_file_id"]) == config.file_retention_seconds
    assert await told_life(newcomer, done["error_file_id"]) - config.limits.failed_batch_retention_s in range(60)
    await stage.execute("update batches set completed_at = completed_at - interval '4 days'")
    await stage.sweep()
    assert (await batching.get(f"/{created['id']}")).status_code == 404
    assert await stage.fetchval("select count(*) from batch_lines") == 0


async def told_life(owner: Party, file_id: str) -> int:
    told = (await owner.read_file(file_id)).json()
    life: int = told["expires_at"] - told["created_at"]
    return life
