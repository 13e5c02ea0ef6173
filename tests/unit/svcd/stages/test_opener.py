"""The opener alone: how long it waits for the chain and the escrow, and how each of their answers affects a job."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from common.box import PublicKey, SecretKey, seal
from common.container import ContainerCommitment
from common.domains import Domains
from common.key_derivation import data_key
from common.sealed_stream import ContainerHead
from svcd.base.end_reasons import WorkFailed
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import Claimed, Contradicted, NotClaimed
from svcd.coordinator.outcomes import CoordinatorRefusal, ReleasedKey, Unanswered
from svcd.journal.book_row import Job
from svcd.journal.held_job import ClaimedJob, OpenedJob, PendingClaim
from svcd.payload.spool import Spool
from svcd.stages import opener as module
from svcd.stages.opener import PayloadOpener
from tests.support.fakes.market import BOOK, START, Market
from tests.unit.svcd.stages.running import model_for

SLA: Final = 3600.0
MARGIN: Final = 30.0
ENDS: Final = SLA - MARGIN  # after this time, no job may start
US: Final = 7
KEY: Final = "the key"
NOT_YET: Final = CoordinatorRefusal(409, "not_claimed")
AWAY: Final = Unavailable("away")


@attrs.define
class World:
    """Everything that a payload depends on. `answers` of the escrow and `standings` of the chain are used in turn.
    The last one repeats."""

    market: Market = attrs.field(factory=lambda: Market(lambda: START))
    is_bid: bool = False
    answers: list[Any] = attrs.field(factory=lambda: [KEY])
    standings: list[Any] = attrs.field(factory=lambda: [Claimed()])
    dek_bytes: int = 32
    fetch_takes: float = 0.0
    asked: list[tuple[Any, ...]] = attrs.field(factory=list)  # requests to the escrow: time, deadline, body
    looked: list[float] = attrs.field(factory=list)  # times of reads from the chain
    fetched_until: list[float] = attrs.field(factory=list)
    fetch_took: list[float] = attrs.field(factory=list)
    ran: list[tuple[float, OpenedJob]] = attrs.field(factory=list)
    spools: list[Spool] = attrs.field(factory=list)
    container: bytes = b""
    items: dict[int, bytes] = attrs.field(factory=dict)  # in the journal
    began: float = attrs.field(factory=trio.current_time)  # all times here count from this one

    def held(self, *, window_ends_at: float = SLA, text: str = "hello", **changed: Any) -> ClaimedJob:
        """Return a job that was claimed at 0."""
        to = self.market.escrow.public if self.is_bid else self.market.box.public
        self.container = self.market.container(self.market.envelope({"input": text}).encode(), to)
        terms = {"designated": "0" if self.is_bid else str(US), "sla_secs": str(int(SLA)), "units_in": "99999"}
        job = Job.read(self.market.jobs[self.market.post(self.container, **terms)])
        slot: Any = None
        return ClaimedJob(job, "demo/text", slot, self.began + window_ends_at, **changed)

    def opener(self, folder: Path, *, box: SecretKey | None = None, chain: bool = False) -> PayloadOpener:
        models = {"demo/text": model_for("demo/text", {"text"}, margin_seconds=MARGIN)}
        given: dict[str, Any] = {
            "coordinator": Escrow(self),
            "signer": Signer(),
            "clock": Clock(self),
            "gateways": Gateways(self),
            "timings": Timings(self),
            "pipeline": Stages({"demo/text": ToRun(self)}, Journal(self)),
            "drain": Drain(),
            "chain": Chain(self) if chain else None,
        }
        return PayloadOpener(
            address_book=BOOK,
            provider_id=US,
            box_secret=box or self.market.box,
            models=models,
            spool_directory=folder,
            max_container_bytes=1 << 20,
            **given,
        )


@attrs.frozen
class Escrow:
    """The coordinator, which releases keys."""

    world: World

    async def release_key(self, body: dict[str, Any], until: float) -> Any:
        world = self.world
        world.asked.append((trio.current_time() - world.began, until - world.began, body))
        told = world.answers.pop(0) if len(world.answers) > 1 else world.answers[0]
        if told != KEY:
            return told
        wrap, _, public, _ = body["rest"]
        seed = ContainerHead(wrap).open_seed(world.market.escrow)
        dek = data_key(seed, BOOK.chain_id, BOOK.job_registry, world.market.owner.address)
        return ReleasedKey(seal(PublicKey(public), (dek + dek)[: world.dek_bytes]))


class Signer:
    domains = Domains.of(BOOK)

    def sign_release(self, job: Any, *rest: Any) -> dict[str, Any]:
        return {"job": job, "rest": rest}


@attrs.frozen
class Clock:
    world: World

    def now(self) -> int:
        return int(trio.current_time() - self.world.began)

    def unix_time(self) -> float:
        return trio.current_time() - self.world.began


@attrs.frozen
class Gateways:
    world: World

    async def fetch(
        self, _: str, spool: Spool, until: float, check: Callable[[], Awaitable[ContainerCommitment]]
    ) -> ContainerCommitment:
        world = self.world
        world.fetched_until.append(until - world.began)
        world.spools.append(spool)
        await trio.sleep(world.fetch_takes)
        await spool.write(world.container)
        return await check()


@attrs.frozen
class Chain:
    world: World

    async def claim_status(self, _: Job) -> Any:
        world = self.world
        world.looked.append(trio.current_time() - world.began)
        told = world.standings.pop(0) if len(world.standings) > 1 else world.standings[0]
        if isinstance(told, Exception):
            raise told
        return told


@attrs.frozen
class Timings:
    world: World

    def margin(self, configured: float) -> float:
        return configured

    def record_fetch(self, seconds: float) -> None:
        self.world.fetch_took.append(seconds)


class Drain:
    @contextmanager
    def cancellable(self) -> Iterator[None]:
        yield


@attrs.frozen
class ToRun:
    world: World

    async def send(self, due: float, opened: OpenedJob) -> None:
        self.world.ran.append((due - self.world.began, opened))


@attrs.frozen
class Journal:
    world: World

    async def read_items(self, _: bytes) -> dict[int, bytes]:
        return self.world.items


@attrs.frozen
class Stages:
    to_run: dict[str, ToRun]
    journal: Journal


async def failure_of(world: World, opener: PayloadOpener, held: ClaimedJob) -> WorkFailed:
    with pytest.raises(WorkFailed) as failed:
        await opener.step(held)
    assert world.ran == []
    return failed.value


@pytest.mark.parametrize("is_bid", [False, True])
async def test_payload_becomes_work_that_names_its_order(is_bid: bool, tmp_path: Path) -> None:
    await trio.sleep(100)
    world = World(is_bid=is_bid, fetch_takes=5.0)
    held = world.held()
    await world.opener(tmp_path).step(held)
    [(due, opened)] = world.ran
    work, job = opened.work, held.job
    assert (due, opened.claimed_job, opened.result_key) == (SLA, held, world.market.result_key.public)
    assert (work.job_id, work.model, work.modality, work.input) == (job.job_id, "demo/text", "text", {"input": "hello"})
    assert (work.units_in, work.units_out, work.deadline) == (job.units_in, job.units_out, world.began + ENDS)
    assert (world.fetched_until, world.fetch_took) == ([270.0], [5.0])
    assert [spool.length for spool in world.spools] == [0]  # the content is discarded
    assert len(world.asked) == is_bid
    if is_bid:
        [(when, until, body)] = world.asked
        assert (when, until, body["job"], body["rest"][-1]) == (5.0, 270.0, job.job_id, 5)


async def test_opening_continues_until_the_run_must_start(tmp_path: Path) -> None:
    world = World()
    await world.opener(tmp_path).step(world.held(window_ends_at=MARGIN + 1))
    assert world.fetched_until == [1.0]
    late = World()
    failure = await failure_of(late, late.opener(tmp_path), late.held(window_ends_at=MARGIN))
    again = await failure_of(late, late.opener(tmp_path), late.held(window_ends_at=MARGIN, is_recovered=True))
    assert (failure.reason, again.reason, late.fetched_until) == ("deadline_wait", "claim_expired", [])


async def test_stored_answers_are_opened_in_half_of_the_margin(tmp_path: Path) -> None:
    world = World(items={0: b"answer"})
    await world.opener(tmp_path).step(world.held(window_ends_at=MARGIN, is_recovered=True))
    [(_, opened)] = world.ran
    assert (world.fetched_until, opened.work.deadline) == ([MARGIN / 2], world.began)
    late = World(items={0: b"answer"})
    failure = await failure_of(late, late.opener(tmp_path), late.held(window_ends_at=MARGIN / 2, is_recovered=True))
    assert (failure.reason, late.fetched_until) == ("claim_expired", [])


async def test_job_found_late_has_half_a_minute_to_open(tmp_path: Path) -> None:
    world = World()
    held = world.held()
    await trio.sleep(250)
    await world.opener(tmp_path).step(held)
    await trio.sleep(750)
    await world.opener(tmp_path).step(held)
    assert world.fetched_until == [280.0, 1030.0]


async def test_chain_is_asked_again_until_it_has_the_claim(tmp_path: Path) -> None:
    world = World(standings=[AWAY, NotClaimed("no post"), Claimed()])
    await world.opener(tmp_path, chain=True).step(world.held())
    assert (world.looked, len(world.ran)) == ([0.0, 2.0, 4.0], 1)


@pytest.mark.parametrize(
    ("standing", "reason", "last"),
    [
        (AWAY, "deadline_wait", 268.0),
        (NotClaimed("no post"), "not_claimed", 268.0),
        (Contradicted("fee"), "unservable", 0),
    ],
)
async def test_claim_missing_on_the_chain_fails_the_job(
    standing: Any, reason: str, last: float, tmp_path: Path
) -> None:
    world = World(standings=[standing])
    failure = await failure_of(world, world.opener(tmp_path, chain=True), world.held())
    assert (failure.reason, world.looked[-1], world.fetched_until) == (reason, last, [])


async def test_job_run_ahead_is_checked_once_claimed(tmp_path: Path) -> None:
    world, ahead = World(), PendingClaim(1, lambda: None)
    opener, held = world.opener(tmp_path, chain=True), world.held(pending_claim=ahead)
    await opener.step(held)
    assert world.looked == []
    ahead.confirm()
    await opener.step(held)
    assert len(world.looked) == 1


@pytest.mark.parametrize("code", ["not_claimed", "no_claim", "stale_issued_at"])
async def test_escrow_that_lags_is_asked_again_with_a_new_time(code: str, tmp_path: Path) -> None:
    world = World(is_bid=True, answers=[CoordinatorRefusal(409, code), KEY])
    await world.opener(tmp_path).step(world.held())
    assert [(when, body["rest"][-1]) for when, _, body in world.asked] == [(0.0, 0), (2.0, 2)]
    assert len(world.ran) == 1


@pytest.mark.parametrize(
    ("answer", "reason", "last"),
    [
        (NOT_YET, "not_claimed", 268.0),
        (CoordinatorRefusal(403, "wrong_wallet"), "wrong_wallet", 0.0),
        (CoordinatorRefusal(499, None), "escrow_unavailable", 0.0),
        (CoordinatorRefusal(500, "broken"), "escrow_unreachable", 0.0),
        (CoordinatorRefusal(429, "busy"), "escrow_unreachable", 0.0),
        (Unanswered("no route"), "escrow_unreachable", 0.0),
    ],
)
async def test_escrow_that_gives_no_key_fails_the_job_with_its_reason(
    answer: Any, reason: str, last: float, tmp_path: Path
) -> None:
    world = World(is_bid=True, answers=[answer])
    failure = await failure_of(world, world.opener(tmp_path), world.held())
    assert (failure.reason, world.asked[-1][0]) == (reason, last)
    said = answer.detail if isinstance(answer, Unanswered) else str(answer.status)
    assert said in failure.detail
    assert [spool.length for spool in world.spools] == [0]


@pytest.mark.parametrize("length", [31, 33])
async def test_key_of_another_length_opens_nothing(length: int, tmp_path: Path) -> None:
    world = World(is_bid=True, dek_bytes=length)
    assert (await failure_of(world, world.opener(tmp_path), world.held())).reason == "undecryptable"


async def test_key_sealed_to_another_box_opens_nothing(tmp_path: Path) -> None:
    world = World(is_bid=True, answers=[ReleasedKey(seal(SecretKey.generate().public, bytes(32)))])
    assert (await failure_of(world, world.opener(tmp_path), world.held())).reason == "undecryptable"


async def test_designated_job_without_our_box_key_cannot_be_opened(tmp_path: Path) -> None:
    world = World()
    opener = attrs.evolve(world.opener(tmp_path), box_secret=None)
    assert (await failure_of(world, opener, world.held())).reason == "no_cipher"


async def test_job_of_another_provider_or_model_is_not_fetched(tmp_path: Path) -> None:
    world = World()
    anothers = attrs.evolve(world.opener(tmp_path), provider_id=US + 1)
    gone = attrs.evolve(world.opener(tmp_path), models={})
    reasons = [(await failure_of(world, opener, world.held())).reason for opener in (anothers, gone)]
    assert (reasons, world.fetched_until) == (["not_our_bid", "unservable"], [])


async def test_only_long_input_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[float] = []

    async def run_sync(act: Callable[[], Any], *_: Any) -> Any:
        threads.append(trio.current_time())
        return act()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    world = World()
    short = world.held(text="x" * 100)
    overhead = len(world.container) - 100
    monkeypatch.setattr(module, "_MAX_INLINE_BYTES", len(world.container))
    await world.opener(tmp_path).step(short)
    assert threads == []
    longer = world.held(text="x" * 101)
    assert len(world.container) == overhead + 101
    await world.opener(tmp_path).step(longer)
    assert (len(threads), len(world.ran)) == (1, 2)
