"""Claims checked against a node's answers, which are encoded here like those of the contracts."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.testing

from common import abi, quotes
from common.api.states import JobState
from common.artifacts import event_topic, load_artifact
from common.domains import Domains
from common.messages.payments import job_payment
from common.secp256k1 import Wallet
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader, Claimed, ClaimStatus, Contradicted, NotClaimed
from svcd.journal.book_row import Job
from tests.support.fakes.market import BOOK
from tests.support.fakes.streamed import StreamedTransport

JOBS = load_artifact("JobRegistry")
OWNER = Wallet(b"\x21" * 32)
C = b"\x0c" * 32
PROVIDER = 7
JOB = Job(
    job_id=quotes.derive_job_id(OWNER.address, C),
    owner=OWNER.address,
    c=C,
    model_id=1,
    sla_secs=600,
    designated=PROVIDER,
    rate_in=1_000_000,
    rate_out=2_000_000,
    units_in=10,
    units_out=20,
    expires_at=2_000_000_000,
    provider_id=PROVIDER,
    claimed_at=0,
    state=JobState.CLAIMED,
    task_cid="bafkrei",
    posted_block=500,
)
TERMS = quotes.FeeTerms(fee_bps=250, gas_fee=1000)


@attrs.define
class FakeNode:
    """`state` and `provider`: the registry's values. `job`: the posted order."""

    job: Job = JOB
    state: int = JobState.CLAIMED
    provider: int = PROVIDER
    collected: bool = True
    signer: Wallet = OWNER
    answer: Callable[[str], httpx.Response | None] = lambda _: None
    batches: bool = True
    asked: list[tuple[str, Any]] = attrs.field(factory=list)
    head: int = 10_000  # logs beyond it are refused
    requests: int = 0

    def reply(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.read())
        self.requests += 1
        if isinstance(body, list):
            if not self.batches:
                error = {"code": -32600, "message": "no batches here"}
                return httpx.Response(400, json={"jsonrpc": "2.0", "id": None, "error": error})
            answers = [self._reply(each) for each in body]
            if odd := [one for one in answers if one.status_code != 200]:
                return odd[0]
            try:
                told = [{**one.json(), "id": each["id"]} for one, each in zip(answers, body, strict=True)]
            except (ValueError, TypeError):  # a node that answers one call with nonsense answers a batch with nonsense
                return next(one for one in answers if not isinstance(_parsed(one), dict))
            return httpx.Response(200, json=told[::-1])  # in any order
        return self._reply(body)

    async def reply_slowly(self, request: httpx.Request) -> httpx.Response:
        await trio.sleep(0.5)
        return self.reply(request)

    def _reply(self, body: dict[str, Any]) -> httpx.Response:
        method, params = body["method"], body["params"]
        self.asked.append((method, params))
        if (given := self.answer(method)) is not None:
            return given
        if method == "eth_getLogs" and int(params[0]["toBlock"], 16) > self.head:
            error = {"code": -32000, "message": "beyond the head"}
            return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "error": error})
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": self._result(method, params)})

    def _result(self, method: str, params: Any) -> Any:
        if method == "eth_chainId":
            return hex(BOOK.chain_id)
        if method == "eth_getLogs":
            return [self._posted()]
        if params[0]["to"] == "0x" + BOOK.paytoken.hex():
            return "0x" + abi.boolean(self.collected).hex()
        (entry,) = (each for each in JOBS.abi if each["type"] == "function" and each["name"] == "job")
        fields = [each["name"] for each in entry["outputs"][0]["components"]]
        held = {"state": self.state, "providerId": self.provider, "claimedAt": 1_900_000_000}
        return "0x" + b"".join(abi.uint(held.get(name, 0)) for name in fields).hex()

    def _posted(self) -> dict[str, Any]:
        job, words = self.job, abi.uint
        amount = quotes.amount(job.rate_in, job.rate_out, job.units_in, job.units_out, TERMS)
        payment = job_payment(job.owner, BOOK.job_registry, amount, job.expires_at, job.job_id)
        plain = {
            "c": abi.bytes32(job.c),
            **{"slaSecs": words(job.sla_secs), "rateIn": words(job.rate_in), "rateOut": words(job.rate_out)},
            **{"unitsIn": words(job.units_in), "unitsOut": words(job.units_out)},
            **{"designated": words(job.designated), "expiresAt": words(job.expires_at)},
            **{"feeBps": words(TERMS.fee_bps), "gasFee": words(TERMS.gas_fee)},
            "taskCid": abi.dynamic_string(job.task_cid),
            "paySig": abi.dynamic_bytes(self.signer.sign(Domains.of(BOOK).token.digest(payment))),
        }
        (entry,) = (each for each in JOBS.abi if each["type"] == "event" and each["name"] == "JobPosted")
        data = abi.encode(*(plain[each["name"]] for each in entry["inputs"] if not each["indexed"]))
        topics = [event_topic(JOBS, "JobPosted"), job.job_id, abi.address(job.owner), abi.uint(job.model_id)]
        return {"topics": ["0x" + bytes(topic).hex() for topic in topics], "data": "0x" + data.hex()}


def _parsed(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


async def claim_status(node: FakeNode, job: Job = JOB) -> ClaimStatus:
    async with httpx.AsyncClient(transport=StreamedTransport(node.reply)) as http:
        return await ChainReader(http, "http://node.example/key", BOOK, PROVIDER).claim_status(job)


async def test_claim_that_the_chain_shows_on_the_terms_told_is_ours() -> None:
    node = FakeNode()
    assert await claim_status(node) == Claimed()
    (wanted,) = next(params for method, params in node.asked if method == "eth_getLogs")
    assert (wanted["fromBlock"], wanted["toBlock"]) == (hex(372), hex(628))


async def test_claim_is_read_in_one_request_or_singly() -> None:
    node = FakeNode(batches=False)
    assert await claim_status(node) == Claimed()
    assert node.requests == 1 + 3
    node = FakeNode()
    assert await claim_status(node) == Claimed()
    assert node.requests == 1


async def read_claims(reply: Callable[[httpx.Request], Awaitable[httpx.Response]], jobs: Sequence[Job]) -> list[object]:
    """Read the status of all jobs at once."""
    found: list[object] = [None] * len(jobs)

    async def read_one(reader: ChainReader, number: int) -> None:
        try:
            found[number] = await reader.claim_status(jobs[number])
        except Unavailable as unavailable:
            found[number] = str(unavailable)

    async with httpx.AsyncClient(transport=StreamedTransport(reply)) as http, trio.open_nursery() as nursery:
        reader = ChainReader(http, "http://node.example/key", BOOK, PROVIDER)
        for number in range(len(jobs)):
            nursery.start_soon(read_one, reader, number)
    return found


async def test_claims_of_a_block_share_batches() -> None:
    node, contradicted = FakeNode(), attrs.evolve(JOB, claimed_at=5)
    found = await read_claims(node.reply_slowly, [JOB, contradicted] * 20)
    assert found[::2] == [Claimed()] * 20
    assert all(isinstance(each, Contradicted) for each in found[1::2])
    assert node.requests == 2  # of 30 and 10 claims


@pytest.mark.parametrize("batches", [True, False])
async def test_refused_call_fails_only_its_claim(batches: bool) -> None:
    node, refused = FakeNode(batches=batches), attrs.evolve(JOB, posted_block=20_000)
    found = await read_claims(node.reply_slowly, [JOB, JOB, refused, JOB])
    assert found[:2] + found[3:] == [Claimed()] * 3
    assert found[2] == "the node node.example rejected eth_getLogs: beyond the head"


async def test_cancelled_claim_does_not_end_the_others() -> None:
    node, found = FakeNode(), []

    async def read_one(reader: ChainReader, seconds: float) -> None:
        with trio.move_on_after(seconds):
            found.append(await reader.claim_status(JOB))

    async with (
        httpx.AsyncClient(transport=StreamedTransport(node.reply_slowly)) as http,
        trio.open_nursery() as nursery,
    ):
        reader = ChainReader(http, "http://node.example/key", BOOK, PROVIDER)
        for seconds in (0.3, 0.7, 9, 9):  # the first two are cancelled while they send
            nursery.start_soon(read_one, reader, seconds)
            await trio.testing.wait_all_tasks_blocked()
    assert found == [Claimed()] * 2


async def test_overloaded_node_gets_one_request_for_all_claims() -> None:
    node = FakeNode(answer=lambda _: httpx.Response(429))
    assert await read_claims(node.reply_slowly, [JOB] * 20) == ["the node node.example answered 429"] * 20
    assert node.requests == 1


async def test_claim_has_the_whole_timeout_after_its_wait() -> None:
    node, durations = FakeNode(), iter((14.0, 14.0))

    async def reply(request: httpx.Request) -> httpx.Response:
        await trio.sleep(next(durations))
        return node.reply(request)

    found: list[ClaimStatus] = []

    async def read_one(reader: ChainReader) -> None:
        found.append(await reader.claim_status(JOB))

    async with httpx.AsyncClient(transport=StreamedTransport(reply)) as http, trio.open_nursery() as nursery:
        reader = ChainReader(http, "http://node.example/key", BOOK, PROVIDER)
        for _ in range(2):
            nursery.start_soon(read_one, reader)
            await trio.sleep(1)
    assert found == [Claimed()] * 2


async def test_stalled_node_times_out_for_every_caller() -> None:
    async def stall(_: httpx.Request) -> httpx.Response:
        await trio.sleep_forever()

    assert await read_claims(stall, [JOB] * 20) == ["the node node.example does not answer in time"] * 20
    assert trio.current_time() < 20


@pytest.mark.parametrize(
    "name", ["model_id", "sla_secs", "rate_in", "rate_out", "units_in", "units_out", "designated", "expires_at"]
)
async def test_changed_term_contradicts_the_chain(name: str) -> None:
    told = attrs.evolve(JOB, **{name: getattr(JOB, name) + 1})
    found = await claim_status(FakeNode(), told)
    assert isinstance(found, Contradicted)
    assert found.detail.startswith(f"{name} is ")


@pytest.mark.parametrize(
    ("name", "value"), [("owner", bytes(20)), ("c", bytes(32)), ("task_cid", "bafother"), ("claimed_at", 5)]
)
async def test_owner_content_and_claim_time_are_checked(name: str, value: object) -> None:
    assert isinstance(await claim_status(FakeNode(), attrs.evolve(JOB, **{name: value})), Contradicted)


@pytest.mark.parametrize(
    "node",
    [FakeNode(state=JobState.OPEN), FakeNode(provider=8), FakeNode(collected=False)],
    ids=["open", "other", "unpaid"],
)
async def test_claim_that_the_chain_does_not_show_is_not_ours_yet(node: FakeNode) -> None:
    assert isinstance(await claim_status(node), NotClaimed)


async def test_payment_of_another_signer_contradicts_the_order() -> None:
    found = await claim_status(FakeNode(signer=Wallet(b"\x22" * 32)))
    assert isinstance(found, Contradicted)
    assert "the owner did not sign" in found.detail


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(503),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "slow down"}}),
        httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": "0x"}),
        httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": None}),
    ],
    ids=["503", "html", "error", "empty", "null"],
)
async def test_silent_node_is_unavailable_and_unnamed(answer: httpx.Response) -> None:
    with pytest.raises(Unavailable) as away:
        await claim_status(FakeNode(answer=lambda _: answer))
    assert "key" not in str(away.value)
