from devnet.catalogue import SLA_WINDOWS_S
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until


@shows("GET /readyz", 503)
async def test_unreachable_chain_makes_unready_with_nulls(stage: Stage) -> None:
    with stage.node.answering(unreachable):
        report = await until(lambda: stage.http.get("/readyz"), 503)
    assert report.headers["x-svc-retryable"] == "true"
    assert report.json() == {
        "ready": False,
        "reason": "chain_unreachable",
        "cursor": None,
        "head_block": None,
        "lag": None,
    }


async def test_stopping_node_is_unready_and_still_healthy(stage: Stage) -> None:
    stage.stopping.is_set = True
    unready = await stage.http.get("/readyz")
    assert (unready.status_code, unready.json()["code"]) == (503, "stopping")
    assert (await stage.http.get("/healthz")).status_code == 200


async def test_other_method_is_a_405_that_names_the_allowed_ones(stage: Stage) -> None:
    answer = await stage.http.delete("/v1/jobs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "OPTIONS, POST"
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_head_answers_as_get_without_a_body(stage: Stage) -> None:
    get, head = await stage.http.get("/v1/models"), await stage.http.head("/v1/models")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))
    assert head.headers["etag"] == get.headers["etag"]


async def test_options_names_the_allowed_methods(stage: Stage) -> None:
    answer = await stage.http.request("OPTIONS", "/v1/models")
    assert answer.status_code == 204
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@shows("POST /auth/session", 413, "body_too_large")
@shows("POST /evm/simulate/claim", 413, "body_too_large")
async def test_default_body_limit_is_1_mib(stage: Stage) -> None:
    for path in ("/auth/session", "/evm/simulate/claim"):
        at_limit = await stage.http.post(path, content=b" " * 2**20)
        over = await stage.http.post(path, content=b" " * (2**20 + 1))
        assert (at_limit.status_code, over.status_code) == (400, 413)


@shows("GET /evm/chain", 200)
async def test_deployment_tells_contracts_token_and_chain(stage: Stage) -> None:
    deployment = (await stage.http.get("/evm/chain")).json()
    book = stage.ground.config.addresses
    assert deployment["chain_id"] == book.chain_id
    assert deployment["contracts"]["job_registry"] == "0x" + book.job_registry.hex()
    assert deployment["contracts"]["paytoken"] == "0x" + book.paytoken.hex()
    assert deployment["decimals"] == 6
    assert deployment["fee_bps"] == 250
    assert int(deployment["head_block"]) >= book.deploy_block
    assert int(deployment["gas_price"]) > 0
    assert deployment["block_time_ms"] == 100
    assert deployment["gas_fee"] == "2000"
    assert deployment["windows"] == sorted(SLA_WINDOWS_S)
    assert deployment.get("gateway_url") == (stage.ground.config.gateway_url or None)


async def test_windows_are_hidden_during_a_rebuild(stage: Stage) -> None:
    await stage.execute("update slas set allowed = false where sla_secs = 300")
    deployment = (await stage.http.get("/evm/chain")).json()
    assert deployment["windows"] == sorted({*SLA_WINDOWS_S} - {300})
    await stage.execute("update index_position set rebuilding = true")
    await until(lambda: stage.http.get("/readyz"), 503)
    answer = await stage.http.get("/evm/chain")
    assert (answer.status_code, "windows" in answer.json()) == (200, False)
