"""Releases: which facts are read from the chain before a key is tried, and who gets the key."""

import asyncio
import json
from typing import Any, Final

import attrs
import pytest

from common import abi, box
from common.api.states import JobState
from common.box import SecretKey
from common.container import commitment
from common.domains import Domains
from common.key_derivation import data_key
from common.messages.escrow import Release
from common.messages.jobs import Order
from common.quotes import FeeTerms, derive_job_id
from common.scalars import hex_of
from common.secp256k1 import Wallet
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.escrow.custody import StaticCustody
from coordinatord.api.escrow.keys import KeyPair
from coordinatord.api.escrow.release import (
    ClaimReader,
    GrantedRelease,
    NotReleased,
    ReleaseBody,
    ReleaseOutcome,
    ReleaseService,
    WalletClaim,
)
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import CLAIMED, ChainJob, JobRegistry, PostedOrder, RegisteredJob
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.storage.database.batched_reads import BatchedReads
from tests.support.fakes.chain import BOOK, DECODER
from tests.support.fakes.rpc_node import RpcFault, RpcNode

NOW: Final = 1_800_000_000
DOMAINS: Final = Domains.of(BOOK)
PROVIDER, RIVAL, STRANGER = (Wallet(bytes([n]) * 32) for n in (1, 2, 3))
RESPONSE: Final = SecretKey.generate()
OWNER, SEED, CT_HASH = b"\xaa" * 20, bytes(range(32)), b"\xcc" * 32
KEY: Final = KeyPair.generate()
WRAP: Final = box.seal(KEY.public, SEED)
COMMITMENT: Final = commitment(WRAP, CT_HASH)
JOB: Final = derive_job_id(OWNER, COMMITMENT)
POSTED: Final = RegisteredJob(PostedOrder(Order(COMMITMENT, 1, 60, 10, 20, 30, 40, 0, NOW), OWNER, FeeTerms(1, 2)), b"")
REVERT: Final = RpcFault({"code": 3, "message": "execution reverted"})
REFUSED: Final = RpcFault({"code": -32603, "message": "Internal error"})

NO_JOB: Final = ()
HELD, RIVALS, SETTLED = (JobState.CLAIMED, 5), (JobState.CLAIMED, 6), (JobState.SETTLED, 5)


class Held(StaticCustody):
    """Custody with one key, if present. It records the keys that it released."""

    is_minted = True
    has_lost = False

    def __init__(self, key: KeyPair = KEY) -> None:
        super().__init__((key,), 7)
        self.handed: list[bytearray | None] = []

    def current_key(self) -> box.PublicKey | None:
        return super().current_key() if self.is_minted else None

    async def open_wrap(self, seed_wrap: bytes) -> bytearray | None:
        self.handed.append(await super().open_wrap(seed_wrap))
        return self.handed[-1]

    async def has_lost_keys(self) -> bool:
        return self.has_lost


@attrs.define
class World(RpcNode):
    """A node with a claimed job at its head and below, and the escrow that reads the node."""

    jobs: dict[bytes, tuple[int, ...]] = attrs.field(factory=lambda: {JOB: HELD})
    ids: dict[bytes, int] = attrs.field(factory=lambda: {PROVIDER.address: 5, RIVAL.address: 6})
    deep_jobs: dict[bytes, tuple[int, ...]] = attrs.field(factory=lambda: {JOB: HELD})
    deep_ids: dict[bytes, int] = attrs.field(factory=lambda: {PROVIDER.address: 5, RIVAL.address: 6})
    vanishes: bool = False  # the job disappears after the first read
    refuses_batches: bool = False
    custody: Held = attrs.field(factory=Held)
    confirmations: int = 0
    head: Any = "0x64"
    broken: dict[bytes, Any] = attrs.field(factory=dict)  # answers by a call's first argument
    asked: list[Any] = attrs.field(factory=list)  # by request: blocks of calls, or methods

    async def post(self, body: bytes) -> tuple[int, bytes]:
        calls = json.loads(body)
        of_batch = isinstance(calls, list)
        calls = calls if of_batch else [calls]
        self.asked.append([c["params"][1] if c["method"] == "eth_call" else c["method"] for c in calls])
        if self.refuses_batches and of_batch:
            return 200, json.dumps({"jsonrpc": "2.0", "id": None, "error": REFUSED.error}).encode()
        return await RpcNode.post(self, body)

    def answer(self, method: str, params: list[Any]) -> Any:
        return self.head if method == "eth_blockNumber" else self._view(*params)

    def _view(self, transaction: dict[str, str], block: str) -> Any:
        argument = bytes.fromhex(transaction["data"][10:])
        latest = block == "latest"
        if transaction["to"] == hex_of(BOOK.provider_registry):
            wallet = argument[12:]
            found = (self.ids if latest else self.deep_ids).get(wallet, 0)
            return self.broken.get(wallet, hex_of(abi.uint(found)))
        assert transaction["to"] == hex_of(BOOK.job_registry)
        job = (self.jobs if latest else self.deep_jobs).get(argument, NO_JOB)
        words = (1, job[0], 0, job[1], 0) if job else (0, CLAIMED, 0, 5, 0)
        return self.broken.get(argument, "0x" + b"".join(abi.uint(word) for word in words).hex())

    def releases(self) -> ReleaseService:
        async def read_index(_: None, keys: list[bytes]) -> dict[bytes, RegisteredJob | None]:
            if self.vanishes:
                self.jobs.clear()
            return dict.fromkeys(keys, None if self.vanishes else POSTED)

        rpc = self.rpc()
        jobs = JobRegistry(rpc, BOOK.job_registry)
        claims = ClaimReader(jobs, ProviderRegistry(rpc, BOOK.provider_registry), self.confirmations)
        posted = PostedJobs(jobs, DECODER, 1, 40, BatchedReads(None, read_index))
        return ReleaseService(DOMAINS, 31337, BOOK.job_registry, self.custody, claims, posted, lambda: NOW)

    async def release(self, body: ReleaseBody) -> ReleaseOutcome:
        return await self.releases().release(body)

    async def refusal(self, body: ReleaseBody) -> str:
        refused = await self.release(body)
        assert isinstance(refused, NotReleased)
        return refused.reason


def request(who: Wallet = PROVIDER, at: int = NOW, wrap: bytes = WRAP, ct_hash: bytes = CT_HASH) -> ReleaseBody:
    signed = Release(JOB, wrap, ct_hash, RESPONSE.public.raw, at)
    signature = who.sign(DOMAINS.escrow.digest(signed))
    return ReleaseBody(
        job_id=JOB,
        seed_wrap=wrap,
        ct_hash=ct_hash,
        response_pubkey=RESPONSE.public,
        issued_at=at,
        signature=signature,
    )


async def trouble(world: World) -> tuple[str, str | None, int | None]:
    with pytest.raises(Retryable) as raised:
        await world.release(request())
    assert world.custody.handed == []
    return raised.value.kind, raised.value.code, raised.value.retry_after


async def test_claim_holder_gets_the_key_and_the_seed_is_wiped() -> None:
    world = World()
    granted = await world.release(request())
    assert isinstance(granted, GrantedRelease)
    key = data_key(SEED, 31337, BOOK.job_registry, OWNER)
    assert box.open_sealed(RESPONSE, granted.dek_sealed) == key
    assert world.custody.handed == [bytes(32)]
    assert world.asked == [["latest"], ["latest"]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (request(at=NOW - 601), "stale_issued_at"),
        (attrs.evolve(request(), signature=b""), "wrong_wallet"),
    ],
)
async def test_bad_request_is_refused_before_reading_the_chain(body: ReleaseBody, reason: str) -> None:
    world = World()
    assert await world.refusal(body) == reason
    assert (world.asked, world.custody.handed) == ([], [])


@pytest.mark.parametrize(
    ("job", "body", "reason"),
    [
        (NO_JOB, request(), "no_claim"),
        (SETTLED, request(), "not_claimed"),
        (HELD, request(ct_hash=b"\xcd" * 32), "wrap_mismatch"),
        (HELD, request(wrap=box.seal(KEY.public, SEED)), "wrap_mismatch"),
        (HELD, request(RIVAL), "wrong_wallet"),
        (HELD, request(STRANGER), "wrong_wallet"),
        (RIVALS, request(), "wrong_wallet"),
        (HELD, attrs.evolve(request(), issued_at=NOW - 1), "wrong_wallet"),  # the signature is for another time
    ],
)
async def test_only_the_claim_holder_gets_a_key(job: tuple[int, ...], body: ReleaseBody, reason: str) -> None:
    world = World(jobs={JOB: job})
    assert await world.refusal(body) == reason
    assert world.custody.handed == []


async def test_job_removed_by_a_reorg_has_no_commitment() -> None:
    assert await World(vanishes=True).refusal(request()) == "wrap_mismatch"


async def test_wrap_is_lost_only_if_our_key_is_known() -> None:
    world = World(custody=Held(KeyPair.generate()))
    assert await world.refusal(request()) == "unseal_failed"
    world.custody.has_lost = True
    assert await world.refusal(request()) == "escrow_key_lost"


async def test_instance_without_a_key_has_the_provider_ask_again() -> None:
    world = World()
    world.custody.is_minted = False
    assert await trouble(world) == ("not_ready", "escrow_key_unminted", 1)


@pytest.mark.parametrize("code", ["job_read", "provider_id_read"])
@pytest.mark.parametrize("answer", [REVERT, REFUSED, "0x"])
async def test_unreadable_fact_is_named(code: str, answer: Any) -> None:
    argument = JOB if code == "job_read" else PROVIDER.address
    assert await trouble(World(broken={argument: answer})) == ("relay_unavailable", code, None)


@pytest.mark.parametrize("code", ["job_read", "provider_id_read"])
async def test_refused_batch_of_reads_is_named(code: str) -> None:
    claims = World(refuses_batches=True).releases().claim_reader
    with pytest.raises(Retryable) as raised:
        await (claims.read_job(JOB) if code == "job_read" else claims.read_provider_id(PROVIDER.address))
    assert raised.value.code == code


async def test_waiting_requests_share_one_read() -> None:
    world = World()
    claims = world.releases().claim_reader
    assert await asyncio.gather(claims.read_job(JOB), claims.read_job(b"\x09" * 32)) == [ChainJob(CLAIMED, 5), None]
    wallets = (RIVAL.address, STRANGER.address, PROVIDER.address)
    assert await asyncio.gather(*map(claims.read_provider_id, wallets)) == [6, None, 5]
    assert world.asked == [["latest"] * 2, ["latest"] * 3]


@pytest.mark.parametrize(("head", "confirmations", "block"), [(100, 1, "0x63"), (100, 20, "0x50"), (20, 20, "0x0")])
async def test_claim_is_checked_at_the_configured_block(head: int, confirmations: int, block: str) -> None:
    world = World(confirmations=confirmations, head=hex(head))
    assert isinstance(await world.release(request()), GrantedRelease)
    assert world.asked[2:] == [["eth_blockNumber"], [block], [block]]


@pytest.mark.parametrize(
    ("job", "provider_id"), [(NO_JOB, 5), (SETTLED, 5), (RIVALS, 5), (RIVALS, 6), (HELD, 6), (HELD, 0)]
)
async def test_claim_that_did_not_stand_that_deep_is_retryable(job: tuple[int, ...], provider_id: int) -> None:
    world = World(confirmations=20, deep_jobs={JOB: job}, deep_ids={PROVIDER.address: provider_id})
    assert await trouble(world) == ("relay_unavailable", "job_read", 1)


@pytest.mark.parametrize("head", [0, 19])
async def test_chain_that_is_not_as_long_confirms_nothing(head: int) -> None:
    world = World(confirmations=20, head=hex(head))
    claims = world.releases().claim_reader
    assert await claims.is_confirmed(WalletClaim(JOB, PROVIDER.address, 5)) is False
    assert world.asked == [["eth_blockNumber"]]


async def test_depth_needs_a_head() -> None:
    assert await trouble(World(confirmations=20, head=REFUSED)) == ("relay_unavailable", "job_read", None)


async def test_waiting_depth_requests_share_one_answer() -> None:
    claims = World(confirmations=20).releases().claim_reader
    holders = [WalletClaim(JOB, who.address, n) for who, n in ((RIVAL, 6), (PROVIDER, 5), (PROVIDER, 6))]
    assert await asyncio.gather(*map(claims.is_confirmed, holders)) == [False, True, False]
