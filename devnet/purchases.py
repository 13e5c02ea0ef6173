"""Buy an open job, a designated job and a batch with the client library, for the demo.

The devnet's provider runs the jobs.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import httpx

from common import quotes
from common.quotes import FeeTerms
from devnet.catalogue import MODELS
from devnet.errors import DevnetError
from devnet.world import Devnet
from svc.batches.results import BatchResult
from svc.client import Client
from svc.errors import SvcError
from svc.records import Deployment, Job, Quote
from svc.results import Result

MODEL_NAME: Final = MODELS[0].name
_WINDOW: Final = "1h"
# Each line of the batch is a question about the capital of one country.
_COUNTRIES: Final = (
    *("Austria", "Canada", "Chile", "Cuba", "Egypt", "England", "Finland", "Germany", "Greece", "India"),
    *("Iran", "Japan", "Kenya", "Nepal", "Norway", "Peru", "Poland", "Russia", "Sweden", "Turkey"),
)
DEMO_TIMEOUT_S: Final = 45.0  # for all purchases together
_BATCH_POLL_INTERVAL_S: Final = 0.5

PrintLine = Callable[[str], None]
Input = dict[str, Any]


async def buy_all(devnet: Devnet, print_line: PrintLine) -> None:
    """Buy two jobs and a batch, and print each step with its cost. Raise `DevnetError` if a job does not settle."""
    began = anyio.current_time()
    try:
        with anyio.fail_after(DEMO_TIMEOUT_S):
            async with _open_client(devnet) as client:
                shopper = Shopper(client, await client.chain(), print_line)
                terms = await shopper.buy_open_job(_chat_input("Why is the sky blue?"))
                await shopper.buy_designated_job(_chat_input("Name three uses of copper."))
                questions = [_chat_input(f"What is the capital of {country}?", 16) for country in _COUNTRIES]
                await shopper.buy_batch(questions, terms)
    except SvcError as error:
        raise DevnetError(f"the client could not buy a job: {error}") from error
    except TimeoutError:
        raise DevnetError(f"the jobs did not complete within {DEMO_TIMEOUT_S:g} s") from None
    print_line(f"client: {len(_COUNTRIES) + 2} jobs were bought and opened in {anyio.current_time() - began:.1f} s")


@attrs.frozen
class Shopper:
    """Client that buys jobs and prints each step."""

    client: Client
    chain: Deployment
    print_line: PrintLine

    async def buy_open_job(self, model_input: Input) -> FeeTerms:
        """Buy an open job at rates that every ask accepts. Return the quoted fees."""
        asks = await self.client.market.asks(model=MODELS[0].model_id, limit=None)
        rate_in, rate_out = max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks)
        key = (await self.client.escrow()).escrow_public_key
        self.print_line(f"client: offers {rate_in}/{rate_out} to any provider; seals to the escrow {key[:16]}…")
        return await self._buy_job("open job", model_input, {"rate_in": rate_in, "rate_out": rate_out})

    async def buy_designated_job(self, model_input: Input) -> FeeTerms:
        """Buy a job from the best live provider at its ask, sealed to that provider."""
        best = (await self.client.probe(MODEL_NAME, model_input, window=_WINDOW))[0]
        rates = f"{best.rate_in}/{best.rate_out}"
        self.print_line(f"client: seals to provider {best.provider_id}, the market's best offer, at {rates}")
        return await self._buy_job("designated job", model_input, {"provider": best.provider_id})

    async def buy_batch(self, inputs: list[Input], terms: FeeTerms) -> None:
        """Plan how the providers share a batch, post the batch as one file, and open each result."""
        lines = [
            {"custom_id": f"line {number}", "body": {"model": MODEL_NAME, **each}}
            for number, each in enumerate(inputs, 1)
        ]
        for plan in await self.client.batches.plan(lines, window=_WINDOW):
            shares = ", ".join(
                f"provider {share.provider_id} {share.lines} at {share.rate_in}/{share.rate_out}"
                for share in plan.allocation
            )
            self.print_line(f"batch: {plan.lines} lines for {MODEL_NAME} are planned: {shares}")
        prepared = await self.client.batches.prepare(lines, window=_WINDOW)
        batch = await self.client.batches.create(prepared)
        self.print_line(f"batch: {batch.id} is posted; {self._format_amount(prepared.amount)} authorised")
        ended = await self.client.batches.wait(batch.id, every=_BATCH_POLL_INTERVAL_S)
        total = opened = 0
        async for result in self.client.batches.results(ended, custom_ids=prepared.custom_ids, fee_terms=prepared.fees):
            line = _require_settled(result)
            text = answer_text(line.output)
            cost = 0 if result.cost is None else result.cost.total
            self.print_line(f"batch: {result.custom_id} was answered {text!r}; cost {self._format_amount(cost)}")
            total, opened = total + cost, opened + 1
        if opened != len(inputs):
            raise DevnetError(f"the batch ended with status {ended.status} and {opened} of {len(inputs)} results")
        self.print_line(f"batch: {ended.status}; {opened} lines cost {self._format_amount(total)}")

    async def _buy_job(self, label: str, model_input: Input, terms: dict[str, Any]) -> FeeTerms:
        prepared = await self.client.prepare(MODEL_NAME, model_input, window=_WINDOW, **terms)
        quote = (await self.client.quote(prepared)).quote
        submitted = await self.client.submit(prepared, final=True)
        self.print_line(f"{label}: {submitted.job_id} is posted; {self._format_amount(submitted.amount)} authorised")
        result = await self.client.open(await self.client.wait(submitted.job_id))
        text = answer_text(result.output)
        charges = _fee_terms(quote)
        cost = self._job_cost(result.job, charges)
        provider, refund = f"provider {result.job.svc.provider_id}", self._format_amount(submitted.amount - cost)
        self.print_line(f"{label}: {provider} claimed, ran and settled; {model_input['input']!r} was answered {text!r}")
        self.print_line(f"{label}: cost {self._format_amount(cost)}; {refund} refunded")
        return charges

    def _job_cost(self, job: Job, charges: FeeTerms) -> int:
        order = job.svc
        units = (order.rate_in, order.rate_out, order.units_in, order.units_out)
        shares = quotes.divide_payment(*units, charges, completion_tok=order.completion_tok)
        return shares.provider_amount + shares.treasury_amount

    def _format_amount(self, amount: int) -> str:
        return f"{amount / 10**self.chain.decimals:,.6f} {self.chain.token_domain.name}"


@asynccontextmanager
async def _open_client(devnet: Devnet) -> AsyncIterator[Client]:
    """Open a client with the first client's wallet, independent of the environment."""
    url, gateway = devnet.coordinator.base_url, devnet.world.pins.gateway
    key = devnet.world.wallets.with_role("client")[0].private_key
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=DEMO_TIMEOUT_S) as http,
        Client(url, http=http, wallet_key=key, gateways=gateway, environment={}) as client,
    ):
        yield client


def answer_text(output: object) -> str:
    """Return the text of a model's response. The echo backend's response is the input. Its text is returned."""
    match output:
        case {"output": [*_, {"content": [{"text": str(text)}]}]} | {"input": str(text)} if text.strip():
            return text.strip()
    raise DevnetError(f"the result of a job contains no text: {output!r}")


def _chat_input(text: str, max_tokens: int = 64) -> Input:
    return {"input": text, "max_output_tokens": max_tokens}


def _fee_terms(quote: Quote) -> FeeTerms:
    return FeeTerms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee)


def _require_settled(line: BatchResult) -> Result:
    if line.result is None:
        raise DevnetError(f"{line.custom_id or line.id} of the batch ended without a result: {line.error}")
    return line.result
