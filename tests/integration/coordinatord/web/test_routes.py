"""The page's files as served, and its two routes."""

import pytest

from common.scalars import base64_of, hex_of
from common.web.files import CONTENT_SECURITY_POLICY
from coordinatord.api.pages.routes import PageRoutes
from tests.integration.coordinatord.book.market_rows import add_history
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage


async def test_page_and_its_files_come_with_a_policy_and_are_told_once(stage: Stage) -> None:
    names = ("", *(f"web/{name}" for name in PageRoutes(enabled=True).files))
    assert {"web/app.js", "web/style.css", "web/chart.js"} <= set(names)
    for name in names:
        answer = await stage.http.get(f"/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY.decode()
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await stage.http.get(f"/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        changed = await stage.http.get(f"/{name}", headers={"if-none-match": '"another"'})
        assert changed.status_code == 200


async def test_nothing_but_the_files_is_served(stage: Stage) -> None:
    for name in ("web/nothing.js", "web/..%2Ffiles.py", "web/__init__.py", "web/%00", "web/operators.html"):
        assert (await stage.http.get(f"/{name}")).status_code == 404, name


@shows("GET /evm/jobs/{job_id}/transactions", 200)
@shows("GET /evm/jobs/{job_id}/transactions", 400, "invalid_request_error")
async def test_transactions_of_a_job_are_named_as_its_life_goes_on(
    stage: Stage, client: Party, provider: Party
) -> None:
    posted = await client.post()
    job = posted["job_id"]

    async def told() -> list[dict[str, str]]:
        answer = await stage.http.get(f"/evm/jobs/{job}/transactions")
        assert answer.status_code == 200
        return list(answer.json()["transactions"])

    (post,) = await told()
    assert (post["kind"], post["tx_hash"]) == ("post", posted["tx_hash"])
    assert (await provider.run(provider.claim(job))).status_code == 201
    settled = await provider.run(provider.settle(job, result=base64_of(b"the sealed result")))
    assert settled.status_code == 201, settled.text
    assert [each["kind"] for each in await told()] == ["post", "claim", "settle"]
    for each in await told():
        receipt = await stage.world.anvil.call("eth_getTransactionReceipt", each["tx_hash"])
        assert int(receipt["blockNumber"], 16) == int(each["block_number"])
    assert (await stage.http.get("/evm/jobs/0x12/transactions")).status_code == 400
    unknown = await stage.http.get(f"/evm/jobs/{hex_of(bytes(32))}/transactions")
    assert unknown.json() == {"transactions": []}


async def test_ending_of_which_only_the_hash_is_kept_is_named(stage: Stage) -> None:
    job = b"\x07" * 32
    await stage.execute("insert into job_ends (job_id, tx_hash) values ($1, $2)", job, b"\x08" * 32)
    told = (await stage.http.get(f"/evm/jobs/{hex_of(job)}/transactions")).json()["transactions"]
    assert told == [{"kind": "end", "tx_hash": hex_of(b"\x08" * 32), "block_number": None}]


@shows("GET /evm/models/{id}/prices", 200)
@shows("GET /evm/models/{id}/prices", 400, "invalid_request_error")
@shows("GET /evm/models/{id}/prices", 404, "not_found")
async def test_prices_of_a_model_are_those_of_its_settled_jobs(stage: Stage, client: Party, provider: Party) -> None:
    assert (await stage.http.get("/evm/models/1/prices")).json()["prices"] == []
    jobs = [(await client.post(rate_in=rate))["job_id"] for rate in (1_000_000, 3_000_000, 2_000_000)]
    for job in jobs:
        assert (await provider.run(provider.claim(job))).status_code == 201
    for job in jobs[:2]:
        settled = await provider.run(provider.settle(job, result=base64_of(b"the sealed result")))
        assert settled.status_code == 201
    told = (await stage.http.get("/evm/models/1/prices")).json()
    assert sum(int(each["jobs"]) for each in told["prices"]) == 2
    assert {each["rate_in"]["high"] for each in told["prices"]} <= {"1000000", "3000000"}
    assert (await stage.http.get("/evm/models/999/prices")).status_code == 404
    assert (await stage.http.get("/evm/models/x/prices")).status_code == 400


@shows("GET /evm/jobs/counts", 200)
async def test_jobs_are_counted_by_state(stage: Stage, client: Party, provider: Party) -> None:
    jobs = [(await client.post())["job_id"] for _ in range(3)]
    assert (await provider.run(provider.claim(jobs[0]))).status_code == 201
    assert (await client.http.post(f"/v1/jobs/{jobs[1]}/cancel", json=client.cancel(jobs[1]))).status_code == 200
    told = (await stage.http.get("/evm/jobs/counts")).json()
    del told["as_of_block"]
    assert told == {"open": "1", "claimed": "1", "settled": "0", "cancelled": "1"}


@shows("GET /evm/models/{id}/prices", 503, "not_ready")
@shows("GET /evm/jobs/counts", 503, "not_ready")
async def test_prices_and_counts_wait_for_the_first_backfill(stage: Stage) -> None:
    await stage.execute("drop trigger count_insert on jobs")
    for path in ("/evm/models/1/prices", "/evm/jobs/counts"):
        answer = await stage.http.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "not_ready")


@pytest.mark.long
async def test_prices_of_many_jobs_are_a_sample_of_all_their_time(stage: Stage) -> None:
    """60,000 jobs are in 15 chunks. The sample takes an equal share of each."""
    async with stage.ground.database.connection() as connection:
        await add_history(connection, 60_000, models=1, providers=3)
        await connection.execute("update jobs set claimed_at = 1800000000 + ordinal")
    told = (await stage.http.get("/evm/models/1/prices")).json()
    assert 1500 < sum(int(each["jobs"]) for each in told["prices"]) <= 2048
    spanned = int(told["prices"][-1]["since"]) - int(told["prices"][0]["since"])
    assert spanned >= 60_000 * 0.9
    assert len(told["prices"]) >= 10


@shows("GET /evm/slots", 200)
async def test_free_slots_are_those_of_polling_providers(stage: Stage, client: Party, provider: Party) -> None:
    before = (await stage.http.get("/evm/slots")).json()
    assert (before["providers"], before["free"]) == ("0", "0")
    posted = await client.post()
    poll = await stage.http.get("/evm/jobs?state=Open&model=1&free=1", headers=provider.authorization)
    assert poll.status_code == 200
    polling = (await stage.http.get("/evm/slots")).json()
    assert (polling["providers"], polling["free"]) == ("1", polling["slots"])
    assert (await provider.run(provider.claim(posted["job_id"]))).status_code == 201
    claimed = (await stage.http.get("/evm/slots")).json()
    assert int(claimed["free"]) == int(claimed["slots"]) - 1
    await stage.execute("update liveness set seen_at = seen_at - interval '1 hour'")
    assert (await stage.http.get("/evm/slots")).json()["providers"] == "0"


@shows("GET /evm/search", 200)
@shows("GET /evm/search", 400, "invalid_request_error")
async def test_search_finds_each_kind_by_the_beginning_of_its_id(stage: Stage, client: Party, provider: Party) -> None:
    job = (await client.post())["job_id"]
    second = (await client.post())["job_id"]
    found: dict[str, set[tuple[str, str]]] = {}
    for prefix in (job[:9], job, client.address[:8].upper().replace("0X", "0x"), provider.address, "0x" + "f" * 50):
        answer = (await stage.http.get("/evm/search", params={"prefix": prefix})).json()
        found[prefix] = {(each["kind"], each["id"]) for each in answer["matches"]}
        assert answer["more"] is False
    assert ("job", job) in found[job[:9]]
    assert found[job] == {("job", job)}
    assert ("owner", client.address) in found[client.address[:8].upper().replace("0X", "0x")]
    operated = dict(found[provider.address])
    assert (await stage.http.get(f"/evm/providers/{operated['provider']}")).json()["operator"] == provider.address
    assert found["0x" + "f" * 50] == set()
    assert second != job
    for wrong in ("0x12", "12345", "0x" + "1" * 65, "0xg123"):
        assert (await stage.http.get("/evm/search", params={"prefix": wrong})).status_code == 400, wrong


async def test_search_is_bounded_in_a_market_of_many(stage: Stage) -> None:
    async with stage.ground.database.connection() as connection:
        await add_history(connection, 5_000, models=1, providers=3)
        await connection.execute("update jobs set job_id = '\\xabcd'::bytea || substring(job_id from 3)")
        await connection.execute("update jobs set owner = '\\xabcdef'::bytea || substring(owner from 4)")
    answer = (await stage.http.get("/evm/search?prefix=0xabcd")).json()
    jobs = [each["id"] for each in answer["matches"] if each["kind"] == "job"]
    assert (len(jobs), jobs) == (8, sorted(jobs))
    owners = [each["id"] for each in answer["matches"] if each["kind"] == "owner"]
    assert len(owners) == len(set(owners)) <= 8
    assert answer["more"] is True


@shows("GET /evm/blocks", 200)
@shows("GET /evm/blocks", 400, "invalid_request_error")
async def test_times_of_blocks_are_those_of_the_chain(stage: Stage, client: Party) -> None:
    job = (await client.post())["job_id"]
    block = (await stage.http.get(f"/evm/jobs/{job}")).json()["posted_block"]
    on_chain = await stage.world.anvil.call("eth_getBlockByNumber", hex(int(block)), False)
    expected = [{"number": block, "time": str(int(on_chain["timestamp"], 16))}]
    asked = f"/evm/blocks?numbers={block},999999999"
    assert (await stage.http.get(asked)).json()["blocks"] == expected
    await stage.execute("delete from index_blocks where number <= $1", int(block))  # the event log still knows it
    assert (await stage.http.get(asked)).json()["blocks"] == expected
    for wrong in ("", "1,", "x", ",".join(["1"] * 101)):
        assert (await stage.http.get("/evm/blocks", params={"numbers": wrong})).status_code == 400, wrong


@shows("GET /evm/slots", 503, "not_ready")
@shows("GET /evm/search", 503, "not_ready")
@shows("GET /evm/blocks", 503, "not_ready")
async def test_data_of_the_page_wait_for_the_index(stage: Stage) -> None:
    await stage.execute("update index_position set rebuilding = true")
    for path in ("/evm/slots", "/evm/search?prefix=0x1234", "/evm/blocks?numbers=1"):
        answer = await stage.http.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "not_ready"), path
