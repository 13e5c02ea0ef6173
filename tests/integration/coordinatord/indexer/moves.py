"""Moves on the real market. Each is one transaction in one block."""

import itertools
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import attrs

from common.address_book import AddressBook
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import ReceiveWithAuthorization
from common.quotes import FeeTerms, derive_job_id, quote
from common.secp256k1 import Wallet
from devnet.accounts import DevWallet
from devnet.catalogue import FEE_BPS, GAS_FEE
from devnet.contracts import SigningNode, contract_at
from devnet.world import World

T = TypeVar("T")


def address_book(world: World) -> AddressBook:
    return AddressBook.from_json(world.market.address_book)


@attrs.define
class Moves:
    """The state of the chain. Call `branch` before a fork, and continue with the copy after it."""

    chain: SigningNode
    world: World
    random: Random
    open: list[bytes] = attrs.field(factory=list)
    claimed: list[tuple[bytes, DevWallet]] = attrs.field(factory=list)
    jobs: list[bytes] = attrs.field(factory=list)
    newcomers: list[str] = attrs.field(factory=list)
    pay_sigs: dict[bytes, bytes] = attrs.field(factory=dict)
    terms: dict[bytes, tuple[object, ...]] = attrs.field(factory=dict)  # of each job, as calls carry them
    clock: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))

    def branch(self) -> "Moves":
        return attrs.evolve(
            self,
            open=list(self.open),
            claimed=list(self.claimed),
            jobs=list(self.jobs),
            newcomers=list(self.newcomers),
        )

    async def move(self) -> None:
        moves: list[Callable[[], Awaitable[None]]] = [self.post, self.publish, self.administer, self.equip]
        moves += [self.claim, self.claim, self.cancel] if self.open else []
        moves += [self.settle, self.fail] if self.claimed else []
        moves += [self.register] if self.newcomers else []
        await self.random.choice(moves)()

    async def post(self) -> None:
        owner, arguments = await self._order()
        await self._jobs(owner.address, "post", *arguments)

    async def sent_post(self) -> bytes:
        """Send a post without waiting for its block. Return the transaction hash."""
        owner, arguments = await self._order()
        contract = contract_at(self.chain, "JobRegistry", self.world.market.jobs)
        sent = await contract.functions.post(*arguments).transact({"from": owner.address, "gas": 1_000_000})
        return bytes(sent)

    async def _order(self) -> tuple[DevWallet, tuple[object, ...]]:
        owner = self.random.choice(self.world.wallets.with_role("client"))
        wallet, domains = Wallet(bytes.fromhex(owner.private_key[2:])), Domains.of(address_book(self.world))
        order = Order(
            c=secrets.token_bytes(32),
            model_id=1,
            sla_secs=3600,
            rate_in=self.random.randint(0, 10**6),
            rate_out=self.random.randint(0, 10**6),
            units_in=self.random.randint(0, 1000),
            units_out=self.random.randint(1, 1000),
            designated=0,
            expires_at=await self._now() + 80_000,
        )
        amount = quote(
            order.rate_in, order.rate_out, order.units_in, order.units_out, FeeTerms(FEE_BPS, GAS_FEE)
        ).amount
        job = derive_job_id(wallet.address, order.c)
        payment = ReceiveWithAuthorization(
            from_=wallet.address,
            to=domains.jobs.domain.verifying_contract or b"",
            value=amount,
            valid_after=0,
            valid_before=order.expires_at + 1,
            nonce=job,
        )
        signatures = wallet.sign(domains.jobs.digest(order)), wallet.sign(domains.token.digest(payment))
        self.jobs.append(job)
        self.open.append(job)
        self.pay_sigs[job] = signatures[1]
        self.terms[job] = (attrs.astuple(order), owner.address, FEE_BPS, GAS_FEE)
        return owner, (attrs.astuple(order), owner.address, amount, "bafkreitask", *signatures)

    async def claim(self) -> None:
        job, provider = self._taken(self.open), self.random.choice(self.world.wallets.with_role("provider"))
        await self._jobs(provider.address, "claim", self.terms[job], 0, b"", self.pay_sigs[job])
        self.claimed.append((job, provider))

    async def settle(self) -> None:
        job, provider = self._taken(self.claimed)
        await self._jobs(provider.address, "settle", self.terms[job], 1, 0, self._cid(), b"")

    async def fail(self) -> None:
        job, provider = self._taken(self.claimed)
        await self._jobs(provider.address, "fail", self.terms[job], 0, b"")

    async def cancel(self) -> None:
        job = self._taken(self.open)
        await self._jobs(str(self.terms[job][1]), "cancel", self.terms[job], 0, b"")

    async def register(self) -> None:
        await self._providers(self._taken(self.newcomers), "register")

    async def publish(self) -> None:
        provider = self.random.choice(self.world.wallets.with_role("provider"))
        quotes = [(1, 3600, *self.random.choice(((0, 0), (7, self.random.getrandbits(100))))), (2, 60, 1, 1)]
        contract = contract_at(self.chain, "AskRegistry", self.world.market.asks)
        provider_id = self.world.market.provider_ids[provider.address]
        await self.chain.send(contract, provider.address, "publish", provider_id, next(self.clock), quotes, b"")

    async def equip(self) -> None:
        provider = self.random.choice(self.world.wallets.with_role("provider"))
        issued_at = await self._now() + next(self.clock)
        if self.random.random() < 0.5:
            await self._providers(provider.address, "setIdentity", secrets.token_bytes(32), b"evidence", issued_at, b"")
        else:
            await self._providers(provider.address, "requestCapacity", self.random.randint(50, 90), issued_at, b"")

    async def administer(self) -> None:
        admin, some = self.world.wallets.admin.address, self.random.getrandbits(20)
        match self.random.randrange(4):
            case 0:
                await self._jobs(admin, "setModel", 9, f"model/{some}", some % 2 == 0, "owner", "{}")
            case 1:
                await self._providers(admin, "setModelAllowed", 1, 1 + some % 2, some % 3 == 0)
            case 2:
                await self._providers(admin, "setAllowlist", b"\1" * 32, some % 3, f'{{"n":{some}}}')
            case _:
                await self._providers(admin, "setCeiling", 2, 50 + some % 50)

    def _cid(self) -> str:
        return self.random.choice(("bafkreiresult", "t\tn\n\\"))

    async def _now(self) -> int:
        return int((await self.chain.web3.eth.get_block("latest"))["timestamp"])

    async def _jobs(self, sender: str, method: str, *arguments: object) -> None:
        contract = contract_at(self.chain, "JobRegistry", self.world.market.jobs)
        await self.chain.send(contract, sender, method, *arguments)

    async def _providers(self, sender: str, method: str, *arguments: object) -> None:
        contract = contract_at(self.chain, "ProviderRegistry", self.world.market.providers)
        await self.chain.send(contract, sender, method, *arguments)

    def _taken(self, among: list[T]) -> T:
        return among.pop(self.random.randrange(len(among)))
