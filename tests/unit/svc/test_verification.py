"""Checking a job against the chain, after ordering and by `svc verify`."""

from typing import Any

import pytest

from svc.core.orders import PreparedOrder, SealedOrder
from svc.errors import ChainContradicts, InternalError, NodeFailed
from svc.market_verifier import VerificationSource
from svc.verification import VerifiedJob
from tests.unit.svc.fake_chain import NODE, FakeNode, paid
from tests.unit.svc.fake_coordinator import Answer, Asked, FakeCoordinator, posted, quoting
from tests.unit.svc.test_orders import JOBS, in_turn


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def coordinator(node: FakeNode) -> FakeCoordinator:
    return FakeCoordinator({JOBS: [in_turn(submitted=[posted], quoted=quoting())], f"POST {NODE}/": [node]})


def _posting(node: FakeNode, sealed: SealedOrder, **changed: Any) -> Any:
    """Return the coordinator's answer to a submission, and put the job on the chain."""

    def answer(asked: Asked) -> Answer:
        node.post(sealed, 890, **changed)
        return posted(asked)

    return answer


async def test_job_is_seen_on_the_chain_as_it_was_signed(coordinator: FakeCoordinator, node: FakeNode) -> None:
    client = coordinator.client(rpc_url=NODE)
    prepared = await client.prepare("demo/text", "hello")
    coordinator.tell(JOBS, in_turn(submitted=[_posting(node, prepared.sealed_order)]))
    assert (await client.submit(prepared)).on_chain is True


async def test_job_that_no_node_shows_yet_is_said_so_and_not_lost(coordinator: FakeCoordinator) -> None:
    told: list[str] = []
    client = coordinator.client(rpc_url=NODE, on_first_use=told.append)
    prepared = await client.prepare("demo/text", "hello")
    assert (await client.submit(prepared)).on_chain is False
    assert told == [f"no node has job {prepared.id} yet: check again with svc verify"]


@pytest.mark.parametrize("lie", [{"rateIn": 5}, {"owner": b"\x66" * 20}, {"designated": 0}, {"c": b"\x66" * 32}])
async def test_another_job_under_the_id_is_reported(
    coordinator: FakeCoordinator, node: FakeNode, lie: dict[str, Any]
) -> None:
    client = coordinator.client(rpc_url=NODE)
    prepared = await client.prepare("demo/text", "hello")
    coordinator.tell(JOBS, in_turn(submitted=[_posting(node, prepared.sealed_order, **lie)]))
    with pytest.raises(ChainContradicts, match=prepared.id):
        await client.submit(prepared)


# --- svc verify --------------------------------------------------------------------------------------------------


def _row(prepared: PreparedOrder, **changed: Any) -> dict[str, Any]:
    body = prepared.quote_body()
    row = {
        **{name: str(body[name]) for name in ("model_id", "sla_secs", "designated", "units_in", "units_out")},
        **{name: body[name] for name in ("job_id", "owner", "c", "rate_in", "rate_out", "expires_at")},
        **{"provider_id": "7", "claimed_at": "5", "completion_tok": "3", "posted_block": "890", "state": 2},
        **{"ended_because": 0, "task_cid": "bafytask", "result_cid": "bafyresult"},
    }
    return row | changed


async def _settled(coordinator: FakeCoordinator, node: FakeNode, **changed: Any) -> Any:
    """Post, claim and settle a job on the chain. The coordinator reports it with `changed`."""
    client = coordinator.client(rpc_url=NODE)
    prepared = await client.prepare("demo/text", "hello")
    amount = await client.check_quote(prepared, await client.quote(prepared))
    sealed = prepared.sealed_order
    job = {"jobId": sealed.job_id, "providerId": 7}
    shares = {"completionTok": 3, "cost": 2, "treasuryShare": 1, "refund": 9, "resultCid": "bafyresult"}
    node.post(sealed, 890, paySig=paid(sealed, amount))
    node.emit("JobClaimed", 891, job | {"claimedAt": 5})
    node.emit("JobSettled", 892, job | shares)
    coordinator.tell(f"GET /evm/jobs/{prepared.id}", Answer(200, _row(prepared, **changed)))
    return prepared, amount


def _by_fact(verified: VerifiedJob) -> dict[str, tuple[str, VerificationSource]]:
    return {each.fact: (each.value, each.source) for each in verified.facts}


async def test_each_fact_names_its_source(coordinator: FakeCoordinator, node: FakeNode) -> None:
    prepared, amount = await _settled(coordinator, node)
    found = _by_fact(await coordinator.client(rpc_url=NODE).verify(prepared.id))
    assert found["amount"] == (f"{amount} base units at most", VerificationSource.SIGNATURE)
    on_chain = ("owner", "order", "rates", "units", "fees", "claimed by", "state", "result")
    assert {found[fact][1] for fact in on_chain} == {VerificationSource.CHAIN}
    assert found["result"][0].startswith("bafyresult, 3 units")
    assert found["container"][1] is VerificationSource.UNVERIFIED
    assert found["deployment"][1] is VerificationSource.KNOWN


async def test_unsigned_payment_is_not_reported_as_signed(coordinator: FakeCoordinator, node: FakeNode) -> None:
    prepared, amount = await _settled(coordinator, node)
    node.logs.clear()
    node.post(prepared.sealed_order, 890, paySig=paid(prepared.sealed_order, amount + 1))
    coordinator.tell(f"GET /evm/jobs/{prepared.id}", Answer(200, _row(prepared, state=0, provider_id="0")))
    found = _by_fact(await coordinator.client(rpc_url=NODE).verify(prepared.id))
    assert found["amount"][1] is VerificationSource.CHAIN


async def test_without_a_node_all_facts_are_the_coordinators(coordinator: FakeCoordinator, node: FakeNode) -> None:
    prepared, _ = await _settled(coordinator, node)
    verified = await coordinator.client().verify(prepared.id)
    assert not verified.checked_on_chain
    assert {each.source for each in verified.facts if each.fact != "deployment"} == {VerificationSource.UNVERIFIED}


LIES: list[dict[str, Any]] = [
    {"rate_in": "5"},
    {"units_out": "5"},
    {"designated": "0"},
    {"expires_at": "5"},
    {"task_cid": "bafyother"},
    {"provider_id": "8"},
    {"result_cid": "bafyother"},
    {"completion_tok": "9"},
    {"state": 3, "ended_because": 3},
    {"posted_block": "899"},
]


@pytest.mark.parametrize("lie", LIES, ids=[next(iter(lie)) for lie in LIES])
async def test_coordinators_false_job_is_found(
    coordinator: FakeCoordinator, node: FakeNode, lie: dict[str, Any]
) -> None:
    prepared, _ = await _settled(coordinator, node, **lie)
    with pytest.raises(ChainContradicts):
        await coordinator.client(rpc_url=NODE).verify(prepared.id)


@pytest.mark.parametrize("lie", [{"owner": "0x" + "66" * 20}, {"c": "0x" + "66" * 32}, {"job_id": "0x" + "66" * 32}])
async def test_row_of_another_job_is_refused_without_a_node(
    coordinator: FakeCoordinator, node: FakeNode, lie: dict[str, Any]
) -> None:
    prepared, _ = await _settled(coordinator, node, **lie)
    with pytest.raises(InternalError, match="returned another job"):
        await coordinator.client().verify(prepared.id)


async def test_lagging_nodes_contradict_nothing(coordinator: FakeCoordinator, node: FakeNode) -> None:
    prepared, _ = await _settled(coordinator, node)
    node.head = 4
    with pytest.raises(NodeFailed, match=r"behind the coordinator's block 5"):
        await coordinator.client(rpc_url=NODE).verify(prepared.id)
