"""Real ops of the open market, ready to be relayed: posts by clients, capacity requests by providers."""

import itertools
import secrets
import time
from collections.abc import Iterator

import attrs

from common.address_book import AddressBook
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.jobs import Cancel, Claim, Fail, Order, Settle
from common.messages.payments import job_payment
from common.messages.providers import RequestCapacity
from common.quotes import FeeTerms, derive_job_id, quote
from common.secp256k1 import Wallet
from coordinatord.chain.contracts import job_registry, provider_registry
from coordinatord.chain.contracts.job_registry import PostedOrder, RegisteredJob
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from devnet.accounts import DevWallet
from devnet.catalogue import FEE_BPS, GAS_FEE
from devnet.market import DevnetMarket

CID = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
# FeeTerms of a job that does not exist.
NOBODYS = RegisteredJob(PostedOrder(Order(bytes(32), 0, 0, 0, 0, 0, 0, 0, 0), bytes(20), FeeTerms(0, 0)), b"")


def raw(address: str) -> bytes:
    return bytes.fromhex(address[2:])


def hexed(address: bytes) -> str:
    return "0x" + address.hex()


def signer(wallet: DevWallet) -> Wallet:
    return Wallet(raw(wallet.private_key))


@attrs.define
class Ops:
    """Ops of a market with these `domains` and addresses. Timestamps increase, so no two capacity requests share
    one."""

    market: DevnetMarket
    book: AddressBook
    domains: Domains
    times: Iterator[int]
    posted: dict[bytes, RegisteredJob] = attrs.field(factory=dict)

    @classmethod
    def of(cls, market: DevnetMarket) -> "Ops":
        book = AddressBook.from_json(market.address_book)
        return cls(market, book, Domains.of(book), itertools.count(int(time.time()) + 100))

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
        amount = quote(1000, 1000, 100, 100, FeeTerms(FEE_BPS, GAS_FEE)).amount
        job = derive_job_id(owner.address, order.c)
        payment = job_payment(owner.address, raw(self.market.jobs), amount, order.expires_at, job)
        signature = owner.sign(self.domains.token.digest(payment))
        self.posted[job] = RegisteredJob(PostedOrder(order, owner.address, FeeTerms(FEE_BPS, GAS_FEE)), signature)
        calldata = job_registry.post_calldata(
            order,
            owner.address,
            amount=amount,
            task_cid=CID,
            order_signature=owner.sign(self.domains.jobs.digest(order)),
            payment=signature,
        )
        return NewRelay(
            RelayKind.POST,
            job,
            b"post" + job,
            raw(self.market.jobs),
            calldata,
            Priority.POST,
            owner.address,
            gas_estimate(RelayKind.POST),
        )

    def request_capacity(self, provider: Wallet, n: int = 5, *, issued_at: int | None = None) -> NewRelay:
        message = RequestCapacity(n, issued_at if issued_at is not None else next(self.times))
        calldata = provider_registry.request_capacity_calldata(
            message.n, message.issued_at, provider.sign(self.domains.providers.digest(message))
        )
        subject = provider.address.rjust(32, b"\0")
        return NewRelay(
            RelayKind.REQUEST_CAPACITY,
            subject,
            b"capacity" + subject + struct_hash(message),
            raw(self.market.providers),
            calldata,
            Priority.OP,
        )

    def reclaim(self, job: bytes) -> NewRelay:
        """Make the cheapest exit. It is refused for any job that is not claimed."""
        calldata = job_registry.reclaim_calldata(self.posted.get(job, NOBODYS).posted)
        return NewRelay(RelayKind.RECLAIM, job, b"reclaim" + job, raw(self.market.jobs), calldata, Priority.EXIT)

    def claim(self, provider: Wallet, job: bytes) -> NewRelay:
        """Claim a job posted through `post`, now."""
        message = Claim(job, int(time.time()))
        signature = provider.sign(self.domains.jobs.digest(message))
        calldata = job_registry.claim_calldata(self.posted[job], message.issued_at, signature)
        return NewRelay(RelayKind.CLAIM, job, b"claim" + job, raw(self.market.jobs), calldata, Priority.OP)

    def settle(self, provider: Wallet, job: bytes, cid: str = CID) -> NewRelay:
        message = Settle(job, 10, int(time.time()))
        signature = provider.sign(self.domains.jobs.digest(message))
        calldata = job_registry.settle_calldata(self.posted[job].posted, 10, message.issued_at, cid, signature)
        registry, content = raw(self.market.jobs), cid.encode()
        return NewRelay(RelayKind.SETTLE, job, b"settle" + job, registry, calldata, Priority.EXIT, content=content)

    def fail(self, provider: Wallet, job: bytes) -> NewRelay:
        message = Fail(job, int(time.time()))
        signature = provider.sign(self.domains.jobs.digest(message))
        calldata = job_registry.fail_calldata(self.posted[job].posted, message.issued_at, signature)
        return NewRelay(RelayKind.FAIL, job, b"fail" + job, raw(self.market.jobs), calldata, Priority.EXIT)

    def cancel(self, owner: Wallet, job: bytes) -> NewRelay:
        message = Cancel(job, int(time.time()))
        signature = owner.sign(self.domains.jobs.digest(message))
        calldata = job_registry.cancel_calldata(self.posted[job].posted, message.issued_at, signature)
        return NewRelay(RelayKind.CANCEL, job, b"cancel" + job, raw(self.market.jobs), calldata, Priority.OP)
