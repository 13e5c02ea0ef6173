from tests.integration.coordinatord.scene.faults import method, node_error, unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until

JOB = "0x" + "12" * 32
INDEX_BACKED = (
    "/v1/models",
    "/evm/models",
    "/v1/models/demo",
    f"/v1/jobs/{JOB}",
    f"/v1/jobs/{JOB}/why",
    f"/v1/jobs/{JOB}/events",
    f"/v1/jobs/{JOB}/progress",
    "/evm/events",
    "/evm/jobs",
    f"/evm/jobs/summary?owner=0x{'12' * 20}",
    f"/evm/jobs/{JOB}",
    "/evm/asks",
    "/evm/asks/floors",
    "/evm/providers",
    "/evm/providers/1",
    "/evm/allowlist",
)


@shows("GET /v1/models", 503, "not_ready")
@shows("GET /evm/models", 503, "not_ready")
@shows("GET /v1/models/{name...}", 503, "not_ready")
@shows("GET /v1/jobs/{id}", 503, "not_ready")
@shows("GET /v1/jobs/{id}/why", 503, "not_ready")
@shows("GET /v1/jobs/{id}/events", 503, "not_ready")
@shows("GET /v1/jobs/{id}/progress", 503, "not_ready")
@shows("GET /evm/events", 503, "not_ready")
@shows("GET /evm/jobs", 503, "not_ready")
@shows("GET /evm/jobs/summary", 503, "not_ready")
@shows("GET /evm/jobs/{job_id}", 503, "not_ready")
@shows("GET /evm/asks", 503, "not_ready")
@shows("GET /evm/asks/floors", 503, "not_ready")
@shows("GET /evm/providers", 503, "not_ready")
@shows("GET /evm/providers/{id}", 503, "not_ready")
@shows("GET /evm/allowlist", 503, "not_ready")
@shows("GET /evm/chain", 503, "chain_unreachable")
async def test_lagging_index_blocks_only_index_routes(client: Party, stage: Stage) -> None:
    order = client.order()
    with stage.node.answering(unreachable):
        await until(lambda: stage.http.get("/readyz"), 503)
        for path in INDEX_BACKED:
            answer = await stage.http.get(path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "not_ready"), path
            assert answer.headers["x-svc-retryable"] == "true"
        assert (await stage.http.get("/auth/nonce", params={"address": client.address})).status_code == 200
        assert (await stage.http.get("/evm/chain")).json()["error"]["type"] == "chain_unreachable"
    await until(lambda: stage.http.get("/readyz"), 200)
    assert (await stage.http.post("/v1/jobs", json=order)).status_code == 402


@shows("GET /v1/models", 400, "invalid_request_error")
@shows("GET /evm/models", 400, "invalid_request_error")
@shows("GET /evm/jobs", 400, "invalid_request_error")
@shows("GET /v1/jobs/{id}", 400, "invalid_request_error")
@shows("GET /v1/jobs/{id}/progress", 400, "invalid_request_error")
@shows("GET /evm/asks", 400, "invalid_request_error")
@shows("GET /evm/asks/floors", 400, "invalid_request_error")
@shows("GET /evm/providers", 400, "invalid_request_error")
@shows("GET /evm/providers/{id}", 400, "invalid_request_error")
@shows("GET /evm/allowlist", 400, "invalid_request_error")
async def test_malformed_query_or_id_names_the_parameter(stage: Stage) -> None:
    for path, param in (
        ("/v1/jobs/0x77/progress", "id"),
        ("/v1/models?limit=1001", "limit"),
        ("/evm/models?limit=1001", "limit"),
        ("/v1/models?offset=1000001", "offset"),
        ("/v1/models?limit=5&limit=5", "limit"),
        ("/v1/models?other=1&other=2", "other"),
        ("/evm/jobs?model=-1", "model"),
        ("/evm/jobs?model=01", "model"),
        ("/evm/jobs?min_rate_in=1.5", "min_rate_in"),
        ("/v1/jobs/%00", "id"),
        ("/evm/asks?model=x", "model"),
        ("/evm/asks/floors?sla=x", "sla"),
        ("/evm/providers?limit=x", "limit"),
        ("/evm/providers/4294967296", "id"),
        ("/evm/providers/one", "id"),
        ("/evm/allowlist?limit=%31%30%30%31", "limit"),
    ):
        answer = await stage.http.get(path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), path
    both = (await stage.http.get("/evm/jobs?model=-1&min_rate_in=x")).json()["error"]["message"]
    assert both.startswith("model must be a decimal")
    assert "; min_rate_in must be a decimal" in both


@shows("GET /v1/models", 200)
@shows("GET /evm/models", 200)
@shows("GET /v1/models/{name...}", 200)
async def test_models_are_listed_and_found_by_name(stage: Stage) -> None:
    listed = (await stage.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert (await stage.http.get("/evm/models")).json()["data"] == listed["data"]
    model = next(model for model in listed["data"] if "/" in model["id"])
    assert model["object"] == "model"
    assert model["svc"]["enabled"] is True
    assert model["svc"]["params_schema"]["type"] == "object"
    assert model["svc"]["params_schema"]["x-svc-endpoint"] == model["svc"]["endpoint"] == "/v1/responses"
    for spelling in (model["id"], model["id"].replace("/", "%2F"), model["id"].replace("/", "%2f")):
        found = (await stage.http.get(f"/v1/models/{spelling}")).json()
        assert found == model | {"as_of_block": listed["as_of_block"]}


@shows("GET /evm/jobs", 200)
@shows("GET /evm/jobs/{job_id}", 200)
@shows("GET /evm/jobs/summary", 200)
async def test_book_filters_orders_and_sums_up(client: Party, stranger: Party, provider: Party, stage: Stage) -> None:
    first = (await client.post())["job_id"]
    second = (await client.post(model_id=2, rate_in=9_000_000))["job_id"]
    third = (await stranger.post())["job_id"]
    assert (await provider.run(provider.claim(third))).status_code == 201

    async def ids(query: str) -> list[str]:
        answer = await stage.http.get(f"/evm/jobs?{query}")
        assert answer.headers["x-svc-page-truncated"] == "false"
        return [job["job_id"] for job in answer.json()["jobs"]]

    assert await ids("") == [first, second, third]
    assert await ids("order=newest") == [third, second, first]
    assert await ids("limit=1&offset=1") == [second]
    assert await ids("model=2") == [second]
    assert await ids("state=Open") == [first, second]
    assert await ids("state=Claimed") == [third]
    assert await ids(f"owner={client.address}") == [first, second]
    assert await ids("min_rate_in=9000000") == [second]
    assert await ids("min_rate_out=2000001") == []
    row = (await stage.http.get(f"/evm/jobs/{third}")).json()
    assert await ids(f"provider={row['provider_id']}") == [third]
    assert await ids(f"posted_before={int(row['posted_block']) - 1}") == [first, second]
    assert row["state"] == 1
    assert row["result_cid"] is None

    total = (await stage.http.get(f"/evm/jobs/summary?owner={client.address}")).json()
    assert (total["jobs"], total["completed"], total["priced"]) == ("2", "0", "2")
    assert total["escrowed"] == str(3000 + 11000)
    assert [part["model_id"] for part in total["by_model"]] == ["1", "2"]
    nobody = (await stage.http.get(f"/evm/jobs/summary?owner=0x{'12' * 20}")).json()
    assert (nobody["jobs"], nobody["escrowed"], nobody["by_model"]) == ("0", "0", [])


async def test_open_job_past_its_expiry_reads_as_expired_everywhere(client: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    await stage.world.anvil.call("evm_increaseTime", 8000)
    await stage.world.anvil.call("evm_mine")
    await until(lambda: stage.http.get(f"/evm/jobs?state=Cancelled&owner={client.address}&limit=1"), 200)
    book = (await until_jobs(stage, "state=Cancelled"))[0]
    assert (book["job_id"], book["state"], book["ended_because"]) == (job, 3, 5)
    assert (await stage.http.get("/evm/jobs?state=Open")).json()["jobs"] == []
    assert (await stage.http.get(f"/v1/jobs/{job}")).json()["status"] == "cancelled"


async def until_jobs(stage: Stage, query: str) -> list[dict[str, object]]:
    jobs: list[dict[str, object]] = []
    while not jobs:
        jobs = (await stage.http.get(f"/evm/jobs?{query}")).json()["jobs"]
    return jobs


@shows("GET /evm/providers", 200)
@shows("GET /evm/providers/{id}", 200)
@shows("GET /evm/allowlist", 200)
async def test_providers_and_allowlist_are_read(stage: Stage) -> None:
    providers = (await stage.http.get("/evm/providers")).json()["providers"]
    assert [provider["provider_id"] for provider in providers] == ["1", "2", "3"]
    one = (await stage.http.get("/evm/providers/2")).json()
    assert one["listed"] is True
    assert (one["reputation"], one["capacity"], one["active_jobs"]) == ("500", "32", "0")
    assert one["evidence"] is None
    await stage.execute(
        "insert into allowlist (key, status, entry) values ('\\xab', 1, '{\"name\": \"x\"}'), ('\\xcd', 2, 'not json')"
    )
    assert (await stage.http.get("/evm/allowlist?limit=5")).json()["entries"] == [
        {"key": "0xab", "status": 1, "entry": {"name": "x"}},
        {"key": "0xcd", "status": 2, "entry": {}},
    ]


async def test_page_is_cut_at_4_mib_and_says_where_to_go_on(stage: Stage) -> None:
    schema = '{"type":"object","description":"' + "x" * 900_000 + '"}'
    insert = "insert into models (model_id, name, enabled, owned_by, params_schema) values ($1, $2, true, 'me', $3)"
    for model_id in range(100, 107):
        await stage.execute(insert, model_id, f"m{model_id}", schema)
    names: list[str] = []
    offset, pages = "0", 0
    while True:
        answer = await stage.http.get(f"/v1/models?limit=1000&offset={offset}")
        assert len(answer.content) <= 4 * 2**20
        names += [model["id"] for model in answer.json()["data"]]
        pages += 1
        if answer.headers["x-svc-page-truncated"] == "false":
            assert "x-svc-next-offset" not in answer.headers
            break
        offset = answer.headers["x-svc-next-offset"]
    assert pages == 2
    assert names[-7:] == [f"m{n}" for n in range(100, 107)]
    assert len(names) == len(set(names))


@shows("GET /evm/chain", 503, "config_read")
@shows("GET /evm/chain", 503, "rate_limited")
async def test_deployment_that_cannot_be_read_is_503(stage: Stage) -> None:
    for number, code in ((-32603, "config_read"), (-32005, "rate_limited")):
        with stage.node.answering(node_error(method("eth_gasPrice"), number)):
            answer = await stage.http.get("/evm/chain")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)


async def test_name_of_no_model_is_not_found_in_its_own_way(stage: Stage) -> None:
    for name in ("a/../b", "..%2Fx", "%00", "a%00b", "%252F", "%ff", "a%2F%2e%2e", "x" * 5000):
        answer = await stage.http.get(f"/v1/models/{name}")
        assert (answer.status_code, set(answer.json()["error"])) == (404, {"message", "type", "code"}), name
