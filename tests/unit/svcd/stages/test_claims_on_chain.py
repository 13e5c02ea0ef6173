"""Claims are checked against a node before a job runs: what happens when the node disagrees or does not answer."""

from collections.abc import Callable

import pytest
import trio

from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader, Claimed, ClaimStatus, Contradicted, NotClaimed
from svcd.journal.book_row import Job
from tests.support.fakes.market import Market
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import model_for

MODEL = model_for("demo/text", {"text"})
Says = Callable[[int], ClaimStatus]


def away(_: int) -> ClaimStatus:
    raise Unavailable("the node: eth_call: ConnectError")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[[Says], list[Job]]:
    """Configure a node. Its n-th answer is `say(n)`. Return the list of jobs that the daemon asked about."""

    def says(say: Says) -> list[Job]:
        asked: list[Job] = []

        async def claim_status(_: ChainReader, job: Job) -> ClaimStatus:
            asked.append(job)
            return say(len(asked))

        async def chain_id(chain: ChainReader) -> int:
            return chain.address_book.chain_id

        monkeypatch.setattr(ChainReader, "claim_status", claim_status)
        monkeypatch.setattr(ChainReader, "chain_id", chain_id)
        return asked

    return says


async def test_job_runs_once_a_recovered_node_shows_the_claim(
    node: Callable[[Says], list[Job]], market: Market, start: Start
) -> None:
    def late(n: int) -> ClaimStatus:
        return away(n) if n < 3 else NotClaimed("state 0, provider 0") if n < 5 else Claimed()

    asked, job = node(late), market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        assert await running.end_of(job) == ("settled", None)
        assert len(running.backend.ran) == 1
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("say", "reason", "questions"),
    [
        (away, "deadline_wait", 100),
        (lambda _: NotClaimed("state 0, provider 0"), "not_claimed", 100),
        (lambda _: Contradicted("rate_in is 1, and not 2"), "unservable", 1),
    ],
    ids=["away", "not claimed", "other terms"],
)
async def test_job_not_on_the_chain_is_never_run(  # noqa: PLR0917 - fixtures come as arguments
    say: Says,
    reason: str,
    questions: int,
    node: Callable[[Says], list[Job]],
    market: Market,
    start: Start,
) -> None:
    asked, job = node(say), market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        began = trio.current_time()
        assert await running.end_of(job) == ("failed", reason)
        assert trio.current_time() - began < 300  # before the owner is refunded
        assert running.backend.ran == []
    assert len(asked) >= questions
    assert asked[0].job_id.hex() == job[2:]


async def test_claim_is_not_awaited_beyond_the_time_to_fail(
    monkeypatch: pytest.MonkeyPatch, node: Callable[[Says], list[Job]], market: Market, start: Start
) -> None:
    node(away)

    async def slow(_: ChainReader, job: Job) -> ClaimStatus:
        await trio.sleep(29)
        raise Unavailable("the node does not answer in time")

    monkeypatch.setattr(ChainReader, "claim_status", slow)
    job = market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        began = trio.current_time()
        assert await running.end_of(job) == ("failed", "deadline_wait")
        assert trio.current_time() - began < 280
