"""A coordinator that lies in any single field gains nothing over an honest one."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import httpx
import pytest

from common.address_book import AddressBook
from common.box import PublicKey, SecretKey
from common.container import open_with_secret
from common.escrow_evidence import report_data
from common.key_derivation import escrow_key
from common.scalars import read_base64
from common.secp256k1 import Wallet
from svc.client import Client
from svc.core.known_market import KnownMarket
from svc.core.retries import RetryPolicy
from svc.core.typed_data import SigningRequest
from svc.errors import OverCeiling, SvcError
from svc.known_markets import KnownMarkets
from tests.integration.svc.conftest import Shop
from tests.integration.svc.judgements import AFTER, JUDGED, NEVER_ASKED, Verdict
from tests.integration.svc.lies import ATTACKERS_KEY, Change, Field, Json, Liar, fields, lies, lying, told
from tests.integration.svc.working_provider import RATE_IN, RATE_OUT, WorkingProvider

MODEL = "demo/text-small"
OPERATOR_KEY = b"\x17" * 32  # of the shop's escrow
_OUTCOMES = {
    Verdict.REFUSED: {"refused"},
    Verdict.HARMLESS: {"same"},
    Verdict.BOUNDED: {"refused", "same", "less"},
    Verdict.UNREAD: set(),
}
_CHAIN, _QUOTE, _KEY = "GET /evm/chain 200", "POST /v1/jobs 402", "GET /key 200"


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough for lies."""
    return "asyncio"


@attrs.define
class Recorder:
    """A wallet that records the messages it signs."""

    wallet: Wallet
    asked: list[SigningRequest] = attrs.field(factory=list)
    deterministic: bool = True

    @property
    def address(self) -> bytes:
        return self.wallet.address

    async def sign(self, request: SigningRequest) -> bytes:
        self.asked.append(request)
        return self.wallet.sign(request.digest)

    def payments(self) -> list[tuple[object, bytes, int]]:
        """Return the token's domain, the collector and the amount of each payment."""
        found = [(each.domain, each.message) for each in self.asked if each.purpose == "payment"]
        return [(domain, message.to, message.value) for domain, message in found]  # type: ignore[attr-defined] # one type

    def domains(self) -> set[object]:
        return {each.domain for each in self.asked}


@attrs.frozen
class Order:
    """One way to order. Returns the containers that it sealed and those that it posted."""

    name: str
    place: Callable[[Client, int, int | None], Awaitable[list[Json]]]


async def _of_the_market(client: Client, _: int, most: int | None) -> list[Json]:
    await client.submit(await client.prepare(MODEL, "hello", window="async"), max_amount=most, final=True)
    return []


async def _of_one_provider(client: Client, provider: int, most: int | None) -> list[Json]:
    terms = {"provider": provider, "rate_in": RATE_IN, "rate_out": RATE_OUT}
    await client.submit(await client.prepare(MODEL, "hello", window="async", **terms), max_amount=most, final=True)  # type: ignore[arg-type]
    return []


async def _of_anybody(client: Client, _: int, most: int | None) -> list[Json]:
    prepared = await client.prepare(MODEL, "hello", window="async", rate_in=RATE_IN, rate_out=RATE_OUT)
    await client.submit(prepared, max_amount=most, final=True)
    return []


async def _of_many(client: Client, _: int, most: int | None) -> list[Json]:
    lines = [{"body": {"model": MODEL, "input": "hello"}}]
    prepared = await client.batches.prepare(lines, window="1h", max_amount=most)
    return [json.loads(line) for line in prepared.content.splitlines()]


MARKET, ONE, OPEN, MANY = (
    Order("market", _of_the_market),
    Order("one provider", _of_one_provider),
    Order("open", _of_anybody),
    Order("batch", _of_many),
)
_WAY = {
    "GET /evm/providers/{id} 200": ONE,
    _KEY: OPEN,
    "GET /auth/nonce 200": MANY,
    "POST /auth/session 200": MANY,
    "POST /v1/batches 402": MANY,
    "GET /evm/asks 200": MANY,
}


@attrs.frozen
class Ended:
    """`refused` is the error, if any."""

    refused: SvcError | None
    signed: Recorder
    orders: list[Json]
    liar: Liar


@attrs.frozen
class Ground:
    shop: Shop
    provider: WorkingProvider
    provider_id: int
    templates: list[str]
    document: dict[str, Any]
    known: dict[str, KnownMarket]
    honest: dict[str, Ended]
    book: AddressBook

    async def order(self, way: Order, liar: Liar, most: int | None, known: KnownMarkets) -> Ended:
        recorder = Recorder(Wallet(bytes.fromhex(self.shop.options["SVC_WALLET_KEY"][2:])))
        refused, made = None, []
        async with httpx.AsyncClient(transport=liar, base_url=self.shop.base_url) as http:
            client = Client(
                http=http,
                environment={},
                signer=recorder,
                addresses=None if known.all() else self.book,
                known_markets=known,
                retries=RetryPolicy(max_retries=0),
            )
            try:
                made = await way.place(client, self.provider_id, most)
            except SvcError as error:
                refused = error
        return Ended(refused, recorder, [*liar.submissions, *made], liar)

    async def lied_to(self, way: Order, changes: dict[str, Change], **liar: Any) -> Ended:
        """Order with a client that knows this market, at no more than the honest price."""
        await self.provider.poll()  # keep the provider live
        ((_, _, amount),) = self.honest[way.name].signed.payments()
        known = KnownMarkets()
        for url, entry in self.known.items():
            known.change(url, lambda _, entry=entry: entry)  # type: ignore[misc] # bound now
        ended = await self.order(way, Liar(self.templates, changes, **liar), amount, known)
        self.require_nothing_gained(way, ended)
        return ended

    def require_nothing_gained(self, way: Order, ended: Ended) -> None:
        honest = self.honest[way.name]
        ((domain, to, amount),) = honest.signed.payments()
        for lied_domain, lied_to, lied_amount in ended.signed.payments():
            assert (lied_domain, lied_to) == (domain, to)
            assert lied_amount <= amount
        assert ended.signed.domains() <= honest.signed.domains()
        for order in ended.orders:
            assert b"hello" in self.opened(way, order)

    def opened(self, way: Order, order: Json) -> bytes:
        """Open the orders with the keys of the honestly named recipients."""
        provider = self.shop.world.wallets.with_role("provider")[0]
        secret = escrow_key(OPERATOR_KEY) if way is OPEN else SecretKey(provider.box_secret)
        owner, container = bytes.fromhex(order["owner"][2:]), read_base64(order["container"], 1 << 24, "container")
        return open_with_secret(secret, self.book.chain_id, self.book.job_registry, owner, container)

    def same(self, way: Order, ended: Ended) -> bool:
        return ended.refused is None and ended.signed.payments() == self.honest[way.name].signed.payments()


@pytest.fixture
async def ground(shop: Shop, provider: WorkingProvider, provider_id: int) -> Ground:
    async with httpx.AsyncClient(base_url=shop.base_url, trust_env=False) as http:
        document = (await http.get("/openapi.json")).json()
    book = AddressBook.parse(json.dumps(shop.world.market.address_book).encode())
    ground = Ground(
        shop, provider, provider_id, sorted(document["paths"], key=len, reverse=True), document, {}, {}, book
    )
    known = KnownMarkets()
    for way in (MARKET, ONE, OPEN, MANY):
        ended = await ground.order(way, Liar(ground.templates), None, known)
        assert ended.refused is None
        ground.honest[way.name] = ended
        ground.require_nothing_gained(way, ended)
    ground.known.update(known.all())
    return ground


async def test_every_answer_and_every_field_is_judged(ground: Ground) -> None:
    found = set(fields(ground.document))
    routes = {field.route for field in found}
    judged = {Field(route, path) for route, paths in JUDGED.items() for path in paths}
    assert routes == {*JUDGED, *AFTER, *NEVER_ASKED}, "judge the new answer in judgements.py"
    assert {field for field in found if field.route in JUDGED} == judged, "judge the new field in judgements.py"
    asked = {route for ended in ground.honest.values() for route in ended.liar.heard}
    assert asked <= set(JUDGED), "an answer that is read before signing must be judged by field"


@pytest.mark.parametrize("route", JUDGED)
async def test_no_lie_in_any_one_field_gains_anything(ground: Ground, route: str) -> None:
    way = _WAY.get(route, MARKET)
    heard = ground.honest[way.name].liar.heard[route]
    for path, judged in JUDGED[route].items():
        values = told(heard, path)
        outcomes = set()
        for at in range(max((len(lies(value)) for value in values), default=0)):
            ended = await ground.lied_to(way, {route: lying(path, partial(_pick, at))})
            outcomes.add("refused" if ended.refused is not None else "same" if ground.same(way, ended) else "less")
        allowed = _OUTCOMES[judged.verdict]
        assert outcomes <= allowed, f"{route} {path} is judged {judged.verdict} ({judged.why})"
        assert bool(outcomes) is (judged.verdict is not Verdict.UNREAD), (
            f"{route} {path}: nothing was told to lie about"
        )


def _pick(at: int, choice: list[Json]) -> Json:
    return choice[min(at, len(choice) - 1)]


# --- lies that fit together --------------------------------------------------------------------------------------


def _all_of(*changes: Change) -> Change:
    def change(body: Json) -> None:
        for each in changes:
            each(body)

    return change


def _set(path: str, value: Json) -> Change:
    return lying(path, lambda _: value)


def _dear_quote(body: Json) -> None:
    """Return a consistent quote of a registry with the highest allowed fees."""
    said = body.get("quote")
    if said is not None:
        fee = int(said["cap"]) // 5
        amount = int(said["cap"]) + fee + int(said["gas_fee"])
        said |= {"fee_bps": 2000, "fee": str(fee), "amount": str(amount)}
        said["authorization"]["value"] = str(amount)


_THIEF = "0x" + "66" * 20
_STOLEN = _all_of(
    _set("quote.authorization.to", _THIEF),
    _set("quote.authorization.domain.verifyingContract", _THIEF),
    _set("candidates[].rate_out", "512500000000"),
)
TOGETHER: dict[str, tuple[Order, dict[str, Change]]] = {
    "the wallet": (MARKET, {_CHAIN: _set("contracts.job_registry", _THIEF), _QUOTE: _STOLEN}),
    "fees": (MARKET, {_QUOTE: _dear_quote}),
    "decimals and rates": (MARKET, {_CHAIN: _set("decimals", 18), _QUOTE: _set("candidates[].rate_in", "10000000000")}),
    "a provider's key, everywhere": (
        ONE,
        {
            _QUOTE: _set("candidates[].box_key", "0x" + ATTACKERS_KEY),
            "GET /evm/providers/{id} 200": _set("box_key", "0x" + ATTACKERS_KEY),
        },
    ),
    "the escrow's key with evidence for it": (
        OPEN,
        {
            _KEY: _all_of(
                _set("escrow_public_key", ATTACKERS_KEY),
                _set("evidence.report_data", report_data(PublicKey(bytes.fromhex(ATTACKERS_KEY))).hex()),
            )
        },
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
async def test_lies_that_fit_together_are_refused(ground: Ground, name: str) -> None:
    way, changes = TOGETHER[name]
    ended = await ground.lied_to(way, changes)
    assert ended.refused is not None
    assert ended.signed.payments() == []


async def test_dearer_quote_in_the_place_of_a_receipt_is_not_paid(ground: Ground) -> None:
    def dearer(submission: Json) -> tuple[int, Json]:
        heard = ended_honestly.liar.heard[_QUOTE][-1]
        body = json.loads(json.dumps(heard))
        body["quote"]["authorization"] |= {"nonce": submission["job_id"]}
        body["quote"]["authorization"]["valid_before"] = str(int(submission["expires_at"]) + 1)
        _dear_quote(body)
        return 409, body

    ended_honestly = ground.honest[MARKET.name]
    ended = await ground.lied_to(MARKET, {}, answers_to_submissions=[dearer])
    assert isinstance(ended.refused, OverCeiling)
    assert ended.signed.payments() == ended_honestly.signed.payments()
