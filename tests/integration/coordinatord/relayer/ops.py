"""Real ops of the open market, ready to be relayed: posts by clients, capacity requests by providers."""

import itertools
import secrets
import time
from collections.abc import Iterator

import attrs

from common.abi import Words, bytes32, call, dynamic, join, selector, text, uint
from common.abi import address as address_word
from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.messages.providers import RequestCapacity
from common.quotes import Terms, job_id, quote
from common.secp256k1 import Wallet
from coordinatord.store.outbox import NewRelay, Priority, RelayKind
from devnet.accounts import Wallet as DevnetWallet
from devnet.anvil import CHAIN_ID
from devnet.catalogue import FEE_BPS, GAS_FEE
from devnet.market import Market

_POST = selector(
    "post((bytes32,uint32,uint32,uint128,uint128,uint32,uint32,uint32,uint64),address,uint256,string,bytes,bytes)"
)
_REQUEST_CAPACITY = selector("requestCapacity(uint32,uint64,bytes)")
_RECLAIM = selector("reclaim(bytes32)")


def raw(address: str) -> bytes:
    return bytes.fromhex(address[2:])


def signer(wallet: DevnetWallet) -> Wallet:
    return Wallet(raw(wallet.private_key))


@attrs.define
class Ops:
    """`domains` and addresses of the market; times count up so that no two capacity requests share one."""

    market: Market
    domains: Domains
    times: Iterator[int]

    @classmethod
    def of(cls, market: Market) -> "Ops":
        book = AddressBook(
            chain_id=CHAIN_ID,
            deploy_block=market.deploy_block,
            job_registry=raw(market.jobs),
            provider_registry=raw(market.providers),
            ask_registry=raw(market.asks),
            paytoken=raw(market.token),
            payment_token_decimals=market.token_decimals,
            token_domain=TokenDomain(market.token_name, market.token_version),
        )
        return cls(market, Domains.of(book), itertools.count(int(time.time()) + 100))

    def post(self, owner: Wallet, *, c: bytes | None = None, sla: int = 300) -> NewRelay:
        order = Order(
            c if c is not None else secrets.token_bytes(32),
            model_id=1,
            sla_secs=sla,
            rate_in=1000,
            rate_out=1000,
            units_in=100,
            units_out=100,
            designated=0,
            expires_at=int(time.time()) + 3000,
        )
        amount = quote(1000, 1000, 100, 100, Terms(FEE_BPS, GAS_FEE)).amount
        job = job_id(owner.address, order.c)
        payment = job_payment(owner.address, raw(self.market.jobs), amount, order.expires_at, job)
        calldata = call(
            _POST,
            _order_words(order),
            address_word(owner.address),
            uint(amount),
            text("bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"),
            dynamic(owner.sign(self.domains.jobs.digest(order))),
            dynamic(owner.sign(self.domains.token.digest(payment))),
        )
        return NewRelay(RelayKind.POST, job, b"post" + job, raw(self.market.jobs), calldata, Priority.POST)

    def request_capacity(self, provider: Wallet, n: int = 5, *, issued_at: int | None = None) -> NewRelay:
        message = RequestCapacity(n, issued_at if issued_at is not None else next(self.times))
        calldata = call(
            _REQUEST_CAPACITY,
            uint(message.n),
            uint(message.issued_at),
            dynamic(provider.sign(self.domains.providers.digest(message))),
        )
        subject = provider.address.rjust(32, b"\0")
        return NewRelay(
            RelayKind.REQUEST_CAPACITY,
            subject,
            b"capacity" + subject + message.struct_hash(),
            raw(self.market.providers),
            calldata,
            Priority.OP,
        )

    def reclaim(self, job: bytes) -> NewRelay:
        """Refused for any job that is not claimed: the cheapest exit that there is."""
        calldata = call(_RECLAIM, bytes32(job))
        return NewRelay(RelayKind.RECLAIM, job, b"reclaim" + job, raw(self.market.jobs), calldata, Priority.EXIT)


def _order_words(order: Order) -> Words:
    return join(
        [
            bytes32(order.c),
            uint(order.model_id),
            uint(order.sla_secs),
            uint(order.rate_in),
            uint(order.rate_out),
            uint(order.units_in),
            uint(order.units_out),
            uint(order.designated),
            uint(order.expires_at),
        ]
    )
