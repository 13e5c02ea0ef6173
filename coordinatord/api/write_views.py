"""The bodies of answers of the routes that write or quote."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from common.address_book import AddressBook
from common.scalars import hex_of
from coordinatord.api import views
from coordinatord.api.views import Address, Bytes32, Digits, HexBytes, ListedCandidate
from coordinatord.service.deployment import ChainNow
from coordinatord.service.submission import Quoted


class Contracts(msgspec.Struct):
    job_registry: Address
    provider_registry: Address
    ask_registry: Address
    paytoken: Address


class TokenName(msgspec.Struct):
    name: str
    version: str


class Deployment(msgspec.Struct):
    chain_id: int
    contracts: Contracts
    decimals: int
    token_domain: TokenName
    gas_price: Digits
    head_block: Digits
    block_time_ms: int
    fee_bps: int


class TokenDomain(msgspec.Struct):
    name: str
    version: str
    chainId: int  # noqa: N815 - EIP-712 names it so
    verifyingContract: Address  # noqa: N815


class Authorization(msgspec.Struct):
    domain: TokenDomain
    to: Address
    value: Digits
    valid_after: Literal["0"]
    valid_before: Digits
    nonce: Bytes32


class Quote(msgspec.Struct):
    cap: Digits
    fee_bps: int
    fee: Digits
    gas_fee: Digits
    amount: Digits
    authorization: Authorization


class Accepts(msgspec.Struct):
    scheme: Literal["eip3009"]
    network: str


class Candidates(msgspec.Struct):
    candidates: list[ListedCandidate]


class QuoteBody(msgspec.Struct):
    quote: Quote
    candidates: list[ListedCandidate]
    accepts: list[Accepts]


class Posted(msgspec.Struct):
    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(msgspec.Struct):
    job_id: Bytes32
    tx_hash: Bytes32


class OpDone(msgspec.Struct):
    tx_hash: Bytes32
    status: Literal["success"]
    block_number: Digits
    result_cid: str | UnsetType = UNSET


class OpRefused(msgspec.Struct):
    """`reason` is the contract error's name; `unknown` comes with the revert data in `raw`."""

    ok: Literal[False]
    reason: str
    raw: HexBytes | UnsetType = UNSET


class ClaimAccepted(msgspec.Struct):
    ok: Literal[True]


class ClaimRefused(msgspec.Struct):
    ok: Literal[False]
    reason: str


class Published(msgspec.Struct):
    provider_id: Digits
    signed_at: Digits
    published: Literal[True]
    tx_hash: Bytes32


def deployment(book: AddressBook, now: ChainNow, block_time_ms: int) -> Deployment:
    return Deployment(
        chain_id=book.chain_id,
        contracts=Contracts(
            job_registry=hex_of(book.job_registry),
            provider_registry=hex_of(book.provider_registry),
            ask_registry=hex_of(book.ask_registry),
            paytoken=hex_of(book.paytoken),
        ),
        decimals=book.payment_token_decimals,
        token_domain=TokenName(book.token_domain.name, book.token_domain.version),
        gas_price=str(now.gas_price),
        head_block=str(now.head_block),
        block_time_ms=block_time_ms,
        fee_bps=now.fee_bps,
    )


def quote_body(book: AddressBook, quoted: Quoted) -> QuoteBody:
    order, quote = quoted.order, quoted.quote
    return QuoteBody(
        quote=Quote(
            cap=str(quote.cap),
            fee_bps=quoted.fee_bps,
            fee=str(quote.fee),
            gas_fee=str(quote.gas_fee),
            amount=str(quote.amount),
            authorization=Authorization(
                domain=TokenDomain(
                    name=book.token_domain.name,
                    version=book.token_domain.version,
                    chainId=book.chain_id,
                    verifyingContract=hex_of(book.paytoken),
                ),
                to=hex_of(book.job_registry),
                value=str(quote.amount),
                valid_after="0",
                valid_before=str(order.expires_at + 1),
                nonce=hex_of(order.job_id),
            ),
        ),
        candidates=[views.candidate(row) for row in quoted.candidates],
        accepts=[Accepts("eip3009", f"eip155:{book.chain_id}")],
    )
