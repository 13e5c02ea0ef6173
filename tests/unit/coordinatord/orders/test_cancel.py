"""Cancels: answers without a relay, and the search for the transaction that ended a job."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import pytest

from common.messages.jobs import Cancel
from common.quotes import FeeTerms
from coordinatord.api.book import jobs_sql
from coordinatord.api.orders.cancel import AlreadyEnded, CancelBody, CancelOutcome, CancelService
from coordinatord.api.orders.endings import EndingFinder
from coordinatord.base.clock import MAX_OP_SKEW_S
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import CLAIMED, OPEN, ChainJob, PostedOrder, RegisteredJob
from coordinatord.chain.relayer import endings_sql, outbox_sql
from coordinatord.chain.relayer.budgets import AdmittedRequest
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import RelayMined
from tests.support.fakes.submissions import Submitter
from tests.unit.coordinatord.orders.test_validation import _paid

NOW: Final = 1_800_000_000
ENDED, TX, MINED = 3, b"\x0e" * 32, RelayMined(b"\x0f" * 32, 9)
JOB: Final = b"\x0a" * 32


@attrs.define
class World:
    """A market with one job, and everything that a cancel reads."""

    job: ChainJob | None = None
    posted: RegisteredJob | None = None
    posted_block: int | None = 100
    head_block: int = 100
    ended_block: int = -1
    posts_under_way: set[tuple[bytes, bytes]] = attrs.field(factory=set)
    relayed: dict[bytes, bytes] = attrs.field(factory=dict)  # endings that this coordinator relayed
    searched: list[tuple[int, int]] = attrs.field(factory=list)
    admitted: list[tuple[Any, ...]] = attrs.field(factory=list)
    relays: list[NewRelay] = attrs.field(factory=list)


@attrs.frozen
class Tables:
    """The database. The statements, which the fixture replaces, get the world."""

    world: World

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[World]:
        yield self.world


@attrs.frozen
class Registry:
    """The chain's views of jobs, and its log of endings."""

    world: World
    address: bytes = b"\x11" * 20

    async def read_job(self, job_id: bytes) -> ChainJob | None:
        return self.world.job

    async def read_head(self) -> int:
        return self.world.head_block

    async def find_ending(self, job_id: bytes, first: int, last: int) -> bytes | None:
        self.world.searched.append((first, last))
        return TX if first <= self.world.ended_block <= last else None


@attrs.frozen
class Posts:
    world: World

    async def find(self, job_id: bytes) -> RegisteredJob | None:
        return self.world.posted


@attrs.frozen
class Budgets:
    world: World

    async def admit(self, *asked: Any) -> AdmittedRequest:
        self.world.admitted.append(asked)
        spending: Any = attrs.make_class("Spending", ["gas_estimate"])(77)
        standing: Any = None
        return AdmittedRequest(spending, standing)


@attrs.frozen
class Relaying:
    world: World

    async def relay(self, relay: NewRelay) -> RelayMined:
        self.world.relays.append(relay)
        return MINED


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    async def find_ending_tx(connection: World, job_id: bytes) -> bytes | None:
        return connection.relayed.get(job_id)

    async def remember_ending(connection: World, job_id: bytes, tx_hash: bytes) -> None:
        connection.relayed[job_id] = tx_hash

    async def read_posted_block(connection: World, job_id: bytes) -> int | None:
        return connection.posted_block

    async def is_under_way(connection: World, job_id: bytes, *, post_of: bytes) -> bool:
        return (job_id, post_of) in connection.posts_under_way

    monkeypatch.setattr(outbox_sql, "is_under_way", is_under_way)
    monkeypatch.setattr(endings_sql, "find_ending_tx", find_ending_tx)
    monkeypatch.setattr(endings_sql, "remember_ending", remember_ending)
    monkeypatch.setattr(jobs_sql, "read_posted_block", read_posted_block)
    return World()


def endings(world: World, widest: int = 10) -> EndingFinder:
    tables: Any = Tables(world)
    registry: Any = Registry(world)
    return EndingFinder(tables, registry, widest)


async def test_ending_that_is_known_here_is_not_searched_for(world: World) -> None:
    world.relayed[JOB] = TX
    assert await endings(world).find_transaction(JOB, in_logs=True) == TX
    assert world.searched == []


async def test_ending_is_searched_by_ranges_and_remembered(world: World) -> None:
    world.head_block, world.ended_block = 125, 125
    assert await endings(world).find_transaction(JOB, in_logs=True) == TX
    assert world.searched == [(100, 109), (110, 119), (120, 125)]
    assert world.relayed == {JOB: TX}


@pytest.mark.parametrize(("head", "searched"), [(99, []), (100, [(100, 100)]), (109, [(100, 109)])])
async def test_ending_that_is_not_found_is_not_remembered(
    head: int, searched: list[tuple[int, int]], world: World
) -> None:
    world.head_block = head
    assert await endings(world).find_transaction(JOB, in_logs=True) is None
    assert (world.searched, world.relayed) == (searched, {})


async def test_search_ends_after_as_many_ranges_as_a_job_can_live(world: World) -> None:
    world.head_block = 10**9
    assert await endings(world, 1).find_transaction(JOB, in_logs=True) is None
    assert len(world.searched) == 400


async def test_search_begins_when_the_index_knows_the_post(world: World) -> None:
    world.posted_block = None
    with pytest.raises(Retryable) as refusal:
        await endings(world).find_transaction(JOB, in_logs=True)
    assert (refusal.value.kind, refusal.value.retry_after) == ("not_ready", 1)


def cancels_of(world: World, submitter: Submitter) -> CancelService:
    given: dict[str, Any] = {
        "database": Tables(world),
        "registry": Registry(world),
        "posted_jobs": Posts(world),
        "budgets": Budgets(world),
        "relaying": Relaying(world),
    }
    return CancelService(domains=submitter.domains, ending_finder=endings(world), clock=lambda: float(NOW), **given)


async def cancel(world: World, submitter: Submitter, state: int | None, *, issued_at: int = NOW) -> CancelOutcome:
    """Cancel, as the owner, a job in this state. None: the chain does not know the job."""
    body = _paid(submitter.line()).order
    world.posted = RegisteredJob(PostedOrder(body, submitter.wallet.address, FeeTerms(0, 0)), b"")
    world.job = None if state is None else ChainJob(*[state, *[0] * (len(attrs.fields(ChainJob)) - 1)])
    cancels = cancels_of(world, submitter)
    signature = submitter.wallet.sign(submitter.domains.jobs.digest(Cancel(JOB, issued_at)))
    return await cancels.cancel(JOB, CancelBody(issued_at=issued_at, signature=signature))


async def test_concurrent_cancels_share_one_relay(world: World, submitter: Submitter) -> None:
    world.posts_under_way = {(JOB, submitter.wallet.address)}  # the job is on the chain again, as after a reorg
    assert await cancel(world, submitter, OPEN) is MINED
    [relay] = world.relays
    assert world.searched == []
    assert world.posted is not None
    signature = submitter.wallet.sign(submitter.domains.jobs.digest(Cancel(JOB, NOW)))
    calldata = job_registry.cancel_calldata(world.posted.posted, NOW, signature)
    assert world.admitted == [(RelayKind.CANCEL, submitter.wallet.address, JOB, len(calldata))]
    wanted = NewRelay(
        kind=RelayKind.CANCEL,
        subject=JOB,
        dedupe=hashlib.sha256(b"cancel" + JOB).digest(),
        target=Registry(world).address,
        calldata=calldata,
        priority=Priority.OP,
        signer=submitter.wallet.address,
        gas_estimate=77,
        spending=relay.spending,
    )
    assert attrs.asdict(relay, recurse=False) == attrs.asdict(wanted, recurse=False)
    assert relay.spending is not None


async def test_ended_job_is_answered_with_its_end(world: World, submitter: Submitter) -> None:
    world.ended_block = 100
    assert await cancel(world, submitter, ENDED) == AlreadyEnded(TX)
    assert world.relays == []


async def test_expired_cancelled_job_is_answered_without_a_search(world: World, submitter: Submitter) -> None:
    world.relayed[JOB] = TX
    assert await cancel(world, submitter, OPEN) == AlreadyEnded(TX)
    assert (world.searched, world.relays) == ([], [])


@pytest.mark.parametrize(("state", "name"), [(CLAIMED, "NotCancellable"), (None, "NotTheOwner")])
async def test_failing_cancel_is_refused_before_it_costs_gas(
    state: int | None, name: str, world: World, submitter: Submitter
) -> None:
    outcome = await cancel(world, submitter, state)
    assert isinstance(outcome, PredictedRefusal)
    assert (outcome.name, world.admitted, world.relays) == (name, [], [])


async def test_cancel_before_the_posts_block_is_retryable(world: World, submitter: Submitter) -> None:
    cancels = cancels_of(world, submitter)
    signature = submitter.wallet.sign(submitter.domains.jobs.digest(Cancel(JOB, NOW)))
    body = CancelBody(issued_at=NOW, signature=signature)
    world.posts_under_way = {(JOB, submitter.wallet.address)}
    with pytest.raises(Retryable) as refusal:
        await cancels.cancel(JOB, body)
    assert (refusal.value.kind, refusal.value.retry_after) == ("not_ready", 1)
    for others in (CancelBody(issued_at=NOW, signature=bytes(65)), attrs.evolve(body, issued_at=NOW + 1)):
        outcome = await cancels.cancel(JOB, others)
        assert isinstance(outcome, PredictedRefusal)
        assert outcome.name == "NotTheOwner"


@pytest.mark.parametrize("off", [-1, 1])
async def test_cancel_is_good_for_ten_minutes_around_now(off: int, world: World, submitter: Submitter) -> None:
    assert await cancel(world, submitter, OPEN, issued_at=NOW + off * MAX_OP_SKEW_S) is MINED
    outcome = await cancel(world, submitter, OPEN, issued_at=NOW + off * (MAX_OP_SKEW_S + 1))
    assert isinstance(outcome, PredictedRefusal)
    assert outcome.name == "StaleOp"


async def test_stranger_cancels_nothing(world: World, submitter: Submitter) -> None:
    await cancel(world, submitter, OPEN)
    assert world.posted is not None
    world.posted = attrs.evolve(world.posted, posted=attrs.evolve(world.posted.posted, owner=b"\x01" * 20))
    cancels = cancels_of(world, submitter)
    for signature in (submitter.wallet.sign(submitter.domains.jobs.digest(Cancel(JOB, NOW))), bytes(65)):
        outcome = await cancels.cancel(JOB, CancelBody(issued_at=NOW, signature=signature))
        assert isinstance(outcome, PredictedRefusal)
        assert outcome.name == "NotTheOwner"
    assert len(world.relays) == 1
