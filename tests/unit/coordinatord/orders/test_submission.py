"""Submissions: what is checked before a post is relayed, which call is relayed, and how each outcome is recorded."""

import base64
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import msgspec
import pytest

from common import abi
from common.api.fields import read_object
from common.artifacts import ERROR_NAMES
from common.messages.jobs import Order
from common.quotes import FeeTerms
from common.refusal import Refused
from coordinatord.api.book import candidates_sql, liveness_sql
from coordinatord.api.book.candidates_sql import Demand
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders import validation
from coordinatord.api.orders.bodies import MarketProbe, OrderBody, to_paid_order
from coordinatord.api.orders.faults import Fault
from coordinatord.api.orders.matchmaker import Matchmaker
from coordinatord.api.orders.submission import (
    ProbeAnswer,
    QuotedOrder,
    SubmissionService,
    SubmitOutcome,
    SubmittedOrder,
)
from coordinatord.api.orders.validation import OrderChecks
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.base.wake import Mailbox
from coordinatord.chain.contracts.job_registry import JobRegistry, PostedOrder
from coordinatord.chain.contracts.payment_token import PaymentToken
from coordinatord.chain.relayer.budgets import AdmittedRequest
from coordinatord.chain.relayer.budgets_sql import Budget, GasLimits, Spending, Standing
from coordinatord.chain.relayer.outbox_sql import NewRelay, PaymentPromise, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, RelayMined
from coordinatord.chain.relayer.solvency import SolvencyChecks
from coordinatord.chain.rpc.client import RpcCall
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.storage.pins.containers import ContentHold, container_key
from tests.support.fakes.submissions import Body, Submitter
from tests.unit.coordinatord.orders.test_validation import _CID, _hex

TX: Final = b"\x0e" * 32
STORED_CID: Final = "bafkreistored"
ACCOUNT: Final = b"\x15" * 20
LIVE: Final = ["asks"]
STANDING: Final = Standing(settled_jobs=0, is_listed=False, block_number=-1, open_amounts=0, unindexed_amounts=0)
RELAY_ID: Final = 5
_SELECTORS: Final = {name: selector for selector, name in ERROR_NAMES.items()}


@attrs.define
class World:
    """A market that accepts everything. Records the calls of a submission."""

    terms: FeeTerms
    terms_after: FeeTerms | None = None
    balance: int = 10**12
    refusal: str | None = None  # revert of the trial post
    windows: tuple[int, ...] | None = None
    under_way: bool = False
    upload: FileRow | None = None
    is_held: bool = True
    outcome: Any = RelayMined(TX, 9)
    joined: bool = False
    tried: list[Any] = attrs.field(factory=list)
    admitted: list[tuple[Any, ...]] = attrs.field(factory=list)
    demands: list[tuple[Any, ...]] = attrs.field(factory=list)
    picked: list[tuple[Any, ...]] = attrs.field(factory=list)
    held: list[tuple[Any, ...]] = attrs.field(factory=list)
    holdings: list[ContentHold] = attrs.field(factory=list)
    attached: list[FileRow] = attrs.field(factory=list)
    relays: list[NewRelay] = attrs.field(factory=list)
    offered: Mailbox[PendingJob] = attrs.field(factory=lambda: Mailbox(10))
    waits: int = 0


@attrs.frozen
class Node:
    """The chain: fee terms, models, windows and balances, and the trial of a post."""

    world: World

    async def call_as(self, kind: type, method: str, *params: Any) -> str:
        """Return the fee terms: the only read outside of a batch."""
        world = self.world
        terms, world.terms = world.terms, world.terms_after or world.terms
        return "0x" + (abi.uint(terms.fee_bps) + abi.uint(terms.gas_fee)).hex()

    async def batch(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw | RpcError]:
        return [self._answer(call) for call in calls]

    def _answer(self, call: RpcCall) -> msgspec.Raw | RpcError:
        if call.method == "eth_getCode":
            return _hex(b"")
        asked: Any = call.params[0]
        data = bytes.fromhex(asked["data"][2:])
        word = int.from_bytes(data[4:36], "big")
        if data[:4] == abi.selector("modelEnabled(uint32)"):
            return _hex(abi.boolean(word == 1))
        if data[:4] == abi.selector("slaAllowed(uint32)"):
            return _hex(abi.boolean(word == 3600))
        if data[:4] == abi.selector("balanceOf(address)"):
            return _hex(abi.uint(self.world.balance))
        self.world.tried.append((asked["from"], asked["to"]))
        if self.world.refusal is not None:
            return RpcError(3, "execution reverted", _SELECTORS[self.world.refusal], RpcErrorKind.REVERTED)
        return _hex(b"")


@attrs.frozen
class Budgets:
    world: World

    async def admit(self, *asked: Any) -> AdmittedRequest:
        _, signer, _ = asked
        self.world.admitted.append(asked)
        return AdmittedRequest(Spending(signer, 77, GasLimits(Budget.POSTS, None, None)), STANDING)

    async def is_under_way(self, subject: bytes) -> bool:
        return self.world.under_way


@attrs.frozen
class Windows:
    world: World

    async def read(self) -> tuple[int, ...] | None:
        return self.world.windows


@attrs.frozen
class Uploads:
    world: World

    async def find_input_upload(self, owner: bytes, cid: str) -> FileRow | None:
        upload = self.world.upload
        return upload if upload is not None and (owner, cid) == (upload.owner, _CID) else None

    async def hold(self, upload: FileRow, job_id: bytes) -> bool:
        self.world.held.append((upload, job_id))
        return self.world.is_held

    async def attach(self, upload: FileRow) -> None:
        self.world.attached.append(upload)


@attrs.frozen
class Containers:
    world: World

    @asynccontextmanager
    async def hold_content(self, *content: Any, check_budget: bool) -> AsyncIterator[ContentHold]:
        self.world.held.append((*content, check_budget))
        self.world.holdings.append(ContentHold(content[0], STORED_CID))
        yield self.world.holdings[-1]


@attrs.frozen
class Relaying:
    world: World

    async def submit(self, relay: NewRelay) -> Any:
        self.world.relays.append(relay)
        outcome = self.world.outcome
        return outcome if isinstance(outcome, RelayBusy) else QueuedRelay(RELAY_ID, relay, self.world.joined)

    async def wait(self, queued: QueuedRelay) -> Any:
        self.world.waits += 1
        if isinstance(self.world.outcome, Exception):
            raise self.world.outcome
        return self.world.outcome


@pytest.fixture
def world(submitter: Submitter, monkeypatch: pytest.MonkeyPatch) -> World:
    async def read_candidates(database: World, *asked: Any) -> list[str]:
        demand, liveness_ms, most = asked
        database.demands.append((demand, liveness_ms, most))
        return LIVE

    async def record_pick(database: World, provider_id: int, model_id: int) -> None:
        database.picked.append((provider_id, model_id))

    monkeypatch.setattr(candidates_sql, "read_candidates", read_candidates)
    monkeypatch.setattr(liveness_sql, "record_pick", record_pick)
    return World(submitter.terms)


def body_of(line: Body, **without: None) -> OrderBody:
    return attrs.evolve(read_object(OrderBody, line), **without)


async def submit(world: World, submitter: Submitter, body: OrderBody | MarketProbe, *, wait: bool = True) -> Any:
    node: Any = Node(world)
    registry, promises = JobRegistry(node, submitter.registry), SolvencyChecks(PaymentToken(node, b"\x14" * 20))
    tables: Any = world  # the fixture replaces the statements, which get the world
    given: list[Any] = [Budgets(world), ACCOUNT, Uploads(world), Windows(world)]
    checks = OrderChecks(submitter.domains, registry, promises, *given, time.time)
    holding: list[Any] = [world.offered, Containers(world), Relaying(world)]
    submissions = SubmissionService(checks, Matchmaker(tables, 30_000, 8), *holding)
    outcome: SubmitOutcome | QueuedRelay = await submissions.submit(body, wait=wait)
    return outcome


def demand_of(body: OrderBody) -> Demand:
    return Demand(**{field.name: getattr(body, field.name) for field in attrs.fields(Demand)})


async def refused(world: World, submitter: Submitter, body: OrderBody) -> tuple[str | None, str | None]:
    with pytest.raises(Refused) as refusal:
        await submit(world, submitter, body)
    assert world.relays == []
    return refusal.value.param, refusal.value.code


async def test_probe_lists_every_live_matching_ask(world: World, submitter: Submitter) -> None:
    probe = MarketProbe(model_id=1, sla_secs=60, units_in=7, units_out=9, designated=3)
    assert await submit(world, submitter, probe) == ProbeAnswer(LIVE)  # type: ignore[arg-type]
    assert world.demands == [(Demand(1, 60, 7, 9, 3), 30_000, None)]


async def test_order_without_payment_gets_the_cheapest_quote(world: World, submitter: Submitter) -> None:
    # The chain would refuse this model and this window.
    body = body_of(submitter.line(designated=3, model_id=2, sla_secs=7), auth_sig=None, container=None)
    quote = body.quote(submitter.terms)
    candidates: Any = LIVE
    assert await submit(world, submitter, body) == QuotedOrder(body, quote, submitter.terms.fee_bps, candidates, False)
    assert world.demands == [(demand_of(body), 30_000, 8)]


async def test_order_that_its_owner_did_not_sign_is_not_quoted(world: World, submitter: Submitter) -> None:
    line = submitter.line()
    body = body_of(line | {"signature": line["auth_sig"]}, auth_sig=None, container=None)
    assert await refused(world, submitter, body) == ("signature", "invalid_order_signature")


async def test_amount_for_other_terms_gets_a_new_quote(world: World, submitter: Submitter) -> None:
    outcome = await submit(world, submitter, body_of(submitter.line(amount=1)))
    assert isinstance(outcome, QuotedOrder)
    assert (outcome.quote, outcome.amount_changed) == (outcome.order.quote(submitter.terms), True)
    assert world.relays == []


async def test_payment_signed_by_another_key_is_refused(world: World, submitter: Submitter) -> None:
    line = submitter.line()
    body = body_of(line | {"auth_sig": line["signature"]})
    assert await refused(world, submitter, body) == ("auth_sig", "invalid_payment_signature")


async def test_post_is_relayed_and_its_container_stored(world: World, submitter: Submitter) -> None:
    line = submitter.line()
    body = body_of(line)
    outcome = await submit(world, submitter, body)
    assert outcome == SubmittedOrder(body.job_id, STORED_CID, TX)
    paid = to_paid_order(body)
    assert paid is not None
    assert world.admitted == [(RelayKind.POST, body.owner, body.job_id)]
    assert world.tried == [("0x" + ACCOUNT.hex(), "0x" + submitter.registry.hex())]
    wanted = NewRelay(
        kind=RelayKind.POST,
        subject=body.job_id,
        dedupe=paid.dedupe_digest(STORED_CID),
        target=submitter.registry,
        calldata=paid.calldata(STORED_CID),
        priority=Priority.POST,
        signer=body.owner,
        gas_estimate=77,
        spending=Spending(body.owner, 77, GasLimits(Budget.POSTS, None, None)),
        promise=PaymentPromise(paid.amount, world.balance, -1),
    )
    [relay] = world.relays
    assert attrs.asdict(relay, recurse=False) == attrs.asdict(wanted, recurse=False)
    content = base64.b64decode(line["container"])
    assert world.held == [(container_key(body.job_id), body.job_id, content, body.owner, True)]
    assert [holding.took_effect for holding in world.holdings] == [True]


async def test_post_is_answered_before_its_block(world: World, submitter: Submitter) -> None:
    body = body_of(submitter.line())
    queued = await submit(world, submitter, body, wait=False)
    assert (queued.id, queued.relay.subject, world.waits) == (RELAY_ID, body.job_id, 0)
    assert [holding.took_effect for holding in world.holdings] == [None]  # the janitor ends the holding


async def test_stored_post_is_offered_to_providers_with_its_terms(world: World, submitter: Submitter) -> None:
    body = body_of(submitter.line())
    await submit(world, submitter, body)
    order = Order(**{field.name: getattr(body, field.name) for field in attrs.fields(Order)})
    payment = body.auth_sig
    assert payment is not None
    posted = PostedOrder(order, body.owner, submitter.terms)
    offer = PendingJob(RELAY_ID, posted, body.signature, payment, STORED_CID)
    assert await world.offered.take(0) == [offer]


async def test_container_of_a_dropped_post_is_left_to_the_janitor(world: World, submitter: Submitter) -> None:
    world.outcome = Retryable("relay_unavailable", "dropped")
    with pytest.raises(Retryable):
        await submit(world, submitter, body_of(submitter.line()))
    assert world.holdings[0].took_effect is None


@pytest.mark.parametrize("designated", [0, 3])
async def test_queued_order_counts_for_its_designated_provider(
    designated: int, world: World, submitter: Submitter
) -> None:
    body = body_of(submitter.line(designated=designated))
    await submit(world, submitter, body)
    assert world.picked == ([(3, 1)] if designated else [])
    world.joined, world.picked = True, []  # a repeated request is the same order
    await submit(world, submitter, body)
    assert world.picked == []


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [(NoReceipt(TX), None), (RelayBusy(), None), (RefusedByChain("DuplicateJob", b""), False)],
    ids=["no receipt", "busy", "refused"],
)
async def test_container_is_given_up_only_where_nothing_took_effect(
    outcome: Any, ended: bool | None, world: World, submitter: Submitter
) -> None:
    world.outcome = outcome
    assert await submit(world, submitter, body_of(submitter.line())) is outcome
    assert [holding.took_effect for holding in world.holdings] == [ended]


async def test_changed_fees_are_answered_with_a_new_quote(world: World, submitter: Submitter) -> None:
    world.outcome, world.terms_after = RefusedByChain("WrongAmount", b""), FeeTerms(fee_bps=500, gas_fee=9)
    body = body_of(submitter.line())
    outcome = await submit(world, submitter, body)
    assert isinstance(outcome, QuotedOrder)
    assert (outcome.quote, outcome.amount_changed) == (body.quote(world.terms_after), True)


@pytest.mark.parametrize(("windows", "named"), [((60, 3600), "60, 3600"), (None, "`windows`")])
async def test_refused_window_lists_the_valid_ones(
    windows: tuple[int, ...] | None, named: str, world: World, submitter: Submitter
) -> None:
    world.windows = windows
    with pytest.raises(Refused, match=named) as refusal:
        await submit(world, submitter, body_of(submitter.line(sla_secs=61)))
    assert (refusal.value.param, world.relays) == ("sla_secs", [])


async def test_model_that_is_not_enabled_is_refused(world: World, submitter: Submitter) -> None:
    assert await refused(world, submitter, body_of(submitter.line(model_id=2))) == ("model_id", None)


async def test_reverting_post_is_answered_and_not_relayed(world: World, submitter: Submitter) -> None:
    world.refusal = "DuplicateJob"
    outcome = await submit(world, submitter, body_of(submitter.line()))
    assert outcome == RefusedByChain("DuplicateJob", _SELECTORS["DuplicateJob"])
    assert (world.held, world.relays) == ([], [])


async def test_caller_may_come_again_where_the_account_has_no_role(world: World, submitter: Submitter) -> None:
    world.refusal = "NotRelayer"
    with pytest.raises(Retryable) as refusal:
        await submit(world, submitter, body_of(submitter.line()))
    assert refusal.value.kind == "relay_unavailable"


async def test_post_beyond_the_balance_may_only_join_another(world: World, submitter: Submitter) -> None:
    body = body_of(submitter.line())
    world.balance = (body.amount or 0) - 1
    outcome = await submit(world, submitter, body)
    assert isinstance(outcome, PredictedRefusal)
    assert (outcome.name, world.relays) == ("InsufficientBalance", [])
    world.under_way = True
    assert isinstance(await submit(world, submitter, body), SubmittedOrder)
    assert [relay.promise for relay in world.relays] == [None]


def uploaded(submitter: Submitter) -> tuple[OrderBody, FileRow]:
    """Return an order that names an upload of its owner instead of a container."""
    body = attrs.evolve(body_of(submitter.line()), container=None, container_cid=_CID)
    now = datetime.now(UTC)
    return body, FileRow("file-1", body.owner, "input", "f", _CID, body.c, 1, 0, False, now, now)


async def test_upload_is_held_for_the_post_and_then_attached(world: World, submitter: Submitter) -> None:
    body, world.upload = uploaded(submitter)
    assert await submit(world, submitter, body) == SubmittedOrder(body.job_id, _CID, TX)
    assert world.held == [(world.upload, body.job_id)]
    assert world.attached == [world.upload]
    world.outcome, world.attached = NoReceipt(TX), []
    await submit(world, submitter, body)
    assert world.attached == []


async def test_unknown_or_expired_upload_is_refused(world: World, submitter: Submitter) -> None:
    body, upload = uploaded(submitter)
    unknown = ("container_cid", "unknown_container")
    assert await refused(world, submitter, body) == unknown
    world.upload, world.is_held = upload, False
    assert await refused(world, submitter, body) == unknown
    world.upload = attrs.evolve(upload, commitment=b"\x01" * 32)
    assert await refused(world, submitter, body) == ("container_cid", "commitment_mismatch")


@pytest.mark.parametrize("padding", [0, validation.MAX_BYTES_HASHED_IN_LOOP])
async def test_container_that_is_not_the_committed_one_is_refused(
    padding: int, world: World, submitter: Submitter
) -> None:
    body = body_of(submitter.line())
    other = attrs.evolve(body, container=b"\x01" * (len(body.container or b"") + padding))
    assert await refused(world, submitter, other) == ("container", "commitment_mismatch")


async def test_only_a_large_container_is_hashed_in_a_thread(
    world: World, submitter: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    hashed_here: list[bool] = []

    def check(body: OrderBody) -> Iterator[Fault]:
        hashed_here.append(threading.get_ident() == here)
        return
        yield

    monkeypatch.setattr(validation, "container_faults", check)
    body = body_of(submitter.line())
    for length in (validation.MAX_BYTES_HASHED_IN_LOOP, validation.MAX_BYTES_HASHED_IN_LOOP + 1):
        await submit(world, submitter, attrs.evolve(body, container=bytes(length)))
    assert hashed_here == [True, False]
