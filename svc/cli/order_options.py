"""Options of an order, for all commands that order a job."""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import click

from svc.cli.exit_codes import ExitCode
from svc.cli.inputs import Input, input_from_text, read_input, read_param
from svc.cli.output import Output
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.core.windows import DEFAULT_WINDOW, WINDOW_FORMS, WINDOW_NOT_ALLOWED, is_valid_window, window_seconds
from svc.errors import OrderRefused

_TERM_NAMES: Final = ("window", "provider", "rate_in", "rate_out", "units_out", "custom_id")
EMBEDDINGS_ENDPOINT: Final = "/v1/embeddings"


@attrs.frozen
class OrderOptions:
    """Options of one order.

    `params` are added to the input. `terms` are keyword arguments of the client's order methods.
    """

    model: str
    raw_input: Input
    params: dict[str, Any]
    terms: dict[str, Any]
    max_amount: int | None

    async def build_input(self, client: Client) -> dict[str, Any]:
        """Return the model's input, with `params` added."""
        value = self.raw_input
        if isinstance(value, str):
            value = input_from_text(value, await client.models.get(self.model))
        return value | self.params

    async def prepare(self, client: Client) -> PreparedOrder:
        return await client.prepare(self.model, await self.build_input(client), **self.terms)


def add_order_options(command: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Add the arguments and options of an order, and pass an `OrderOptions` as `order`."""

    @click.argument("model", help="Name of a model (see svc models).")
    @click.argument("text", required=False, help="Input text. Without it, or with -, read standard input.")
    @click.option("--file", "-f", metavar="FILE", help="Read the input from a file: text, or a JSON object.")
    @click.option("--param", "-p", "params", metavar="NAME=VALUE", multiple=True, help="Set a parameter of the model.")
    @click.option("--window", "-w", help="Time limit: 1h (async), 24h (batch), <n>h, <n>m or <n>s.")
    @click.option("--provider", type=click.IntRange(1, 2**32 - 1), help="Send the order to this provider only.")
    @click.option("--rate-in", type=click.IntRange(0), help="Offered rate: base units per 10^6 units of input.")
    @click.option("--rate-out", type=click.IntRange(0), help="Offered rate: base units per 10^6 units of output.")
    @click.option("--units-out", type=click.IntRange(0, 2**32 - 1), help="Maximum units of output to pay for.")
    @click.option("--embeddings", is_flag=True, help="The model makes embeddings, so no output units are paid for.")
    @click.option("--custom-id", help="Your own name for the job. It is sealed with the order.")
    @click.option(
        "--max-amount",
        type=click.IntRange(1),
        help="Highest amount in base units.  [env: SVC_MAX_AMOUNT]",
    )
    @functools.wraps(command)
    def with_order(**options: Any) -> ExitCode:
        terms = {name: value for name in _TERM_NAMES if (value := options.pop(name)) is not None}
        if options.pop("embeddings"):
            terms["endpoint"] = EMBEDDINGS_ENDPOINT
        max_amount = options.pop("max_amount")
        model, text, file, params = (options.pop(name) for name in ("model", "text", "file", "params"))
        model_input = read_input(text, file, sys.stdin.buffer)
        read_params = dict(read_param(param) for param in params)
        return command(order=OrderOptions(model, model_input, read_params, terms, max_amount), **options)

    return with_order


async def check_window(client: Client, output: Output, terms: Mapping[str, Any]) -> None:
    """Check the window before it is signed.

    Raises OrderRefused for an unknown window, which would otherwise be signed as one hour. Warns if no provider has a
    price for the window and no node can confirm that the network accepts it.
    """
    window = terms.get("window", DEFAULT_WINDOW)
    if not is_valid_window(window):
        available = (await client.market.windows(DEFAULT_WINDOW)).as_text
        message = f"--window {window} is not supported: use {WINDOW_FORMS}; this market has {available}"
        raise OrderRefused(message, code=WINDOW_NOT_ALLOWED, param="window")
    if client.market_verifier.chain is None and ("rate_in" in terms or "rate_out" in terms):
        windows = await client.market.windows(window)
        if not windows.complete and window_seconds(window) not in windows.seconds:
            output.warn(
                f"no provider has a price for {window}, and the network may reject this window;"
                f" windows with a price: {windows.as_text}"
            )
