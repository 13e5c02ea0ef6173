"""Conversion of jobs, candidates and quotes to the bodies that the routes return."""

from typing import Literal

from common import quotes
from common.address_book import AddressBook
from common.api import jobs, market
from common.api.shapes import OMITTED, Digits
from common.api.states import job_status
from common.quotes import FeeTerms
from common.scalars import hex_of
from coordinatord.api.book.bodies import digits_or_omitted, reliability_shape
from coordinatord.api.book.candidates_sql import LiveAsk
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.orders.submission import QuotedOrder


def client_job_shape(row: JobRow, block: int, reclaimable_block: int | None = None) -> jobs.ClientJob:
    """Return a job as its client sees it. `reclaimable_block` is an estimate."""
    job_id = hex_of(row.job_id)
    # Arguments by position, because clients poll this route often, and keyword arguments would double its cost.
    return jobs.ClientJob(
        job_id,
        row.model,
        job_status(row.state, row.ended_because),
        str(row.claimed_at) if row.claimed_at else None,
        row.result_cid,
        jobs.ClientJobDetails(
            job_id,
            hex_of(row.owner),
            str(row.model_id),
            str(row.sla_secs),
            row.rate_in,
            row.rate_out,
            str(row.units_in),
            str(row.units_out),
            str(row.designated),
            str(row.provider_id),
            str(row.expires_at),
            row.task_cid,
            str(row.completion_tok),
            row.state,
            row.ended_because,
            row.amount,
            digits_or_omitted(row.reclaimable_at),
            digits_or_omitted(row.ended_at),
            digits_or_omitted(reclaimable_block),
            *_settled_cost(row),
        ),
        str(block),
    )


def _settled_cost(row: JobRow) -> tuple[Digits, jobs.CostPartsShape[Digits]]:
    """Return the total that the client of a settled job paid, and the parts of that total. Omit both for other jobs."""
    if row.provider_paid is None:
        return OMITTED, OMITTED
    parts = quotes.cost_parts(int(row.provider_paid), FeeTerms(row.fee_bps, int(row.gas_fee)))
    return str(parts.total), jobs.CostPartsShape(row.provider_paid, str(parts.fee), row.gas_fee)


def candidate_shape(row: LiveAsk) -> market.ListedCandidate[Digits]:
    return market.ListedCandidate(
        str(row.provider_id),
        hex_of(row.box_key),
        row.rate_in,
        row.rate_out,
        reliability_shape(row.reliability),
        str(max(0, row.room)),
    )


def quote_body_shape(address_book: AddressBook, quoted: QuotedOrder) -> market.QuoteBodyShape:
    return market.QuoteBodyShape(
        quote=quote_shape(address_book, quoted),
        candidates=tuple(candidate_shape(row) for row in quoted.candidates),
        accepts=[market.Accepts("eip3009", f"eip155:{address_book.chain_id}")],
    )


def quote_shape(address_book: AddressBook, quoted: QuotedOrder) -> market.QuoteShape[Digits, Literal["0"]]:
    order, quote = quoted.order, quoted.quote
    return market.QuoteShape(
        cap=str(quote.cap),
        fee_bps=quoted.fee_bps,
        fee=str(quote.fee),
        gas_fee=str(quote.gas_fee),
        amount=str(quote.amount),
        authorization=market.Authorization(
            domain=market.TokenDomainShape(
                name=address_book.token_domain.name,
                version=address_book.token_domain.version,
                chainId=address_book.chain_id,
                verifyingContract=hex_of(address_book.paytoken),
            ),
            to=hex_of(address_book.job_registry),
            value=str(quote.amount),
            valid_after="0",
            valid_before=str(order.expires_at + 1),
            nonce=hex_of(order.job_id),
        ),
    )


def check_result_shape(
    address_book: AddressBook, failures: list[market.FailedCheck], quoted: QuotedOrder | None, *, paid: bool
) -> market.CheckedShape:
    return market.CheckedShape(
        ok=not failures,
        checked="submission" if paid else "order",
        failures=tuple(failures),
        quote=quote_shape(address_book, quoted) if quoted is not None else None,
        candidates=tuple(candidate_shape(row) for row in quoted.candidates) if quoted is not None else (),
    )
