"""Options of an order, shared by every command that makes one."""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import click

from svc.cli.exit_codes import Exit
from svc.cli.inputs import Input, read_input, read_param, text_input
from svc.cli.output import Output
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.core.windows import DEFAULT_WINDOW, WINDOW_FORMS, WINDOW_REFUSED, is_window, window_seconds
from svc.errors import OrderRefused

_TERMS: Final = ("window", "provider", "rate_in", "rate_out", "units_out", "custom_id")
EMBEDDINGS: Final = "/v1/embeddings"


@attrs.frozen
class OrderOptions:
    """`params` are added to the input. `terms` are the keyword arguments of the client's order methods."""

    model: str
    given: Input
    params: dict[str, Any]
    terms: dict[str, Any]
    max_amount: int | None

    async def prepare(self, client: Client) -> PreparedOrder:
        given = self.given
        if isinstance(given, str):
            given = text_input(given, await client.models.get(self.model))
        return await client.prepare(self.model, given | self.params, **self.terms)


def takes_order(command: Callable[..., Exit]) -> Callable[..., Exit]:
    """Adds MODEL, the input and the terms; `command` gets them as `order`."""

    @click.argument("model", help="A model's name: svc models lists them.")
    @click.argument("text", required=False, help="The input; - reads standard input, as does no input at all.")
    @click.option("--file", "-f", metavar="FILE", help="Read the input from a file: text, or a JSON object.")
    @click.option("--param", "-p", "params", metavar="NAME=VALUE", multiple=True, help="Add a parameter of the model.")
    @click.option("--window", "-w", help="How long it may take: 1h (async), 24h (batch), <n>h, <n>m or <n>s.")
    @click.option("--provider", type=click.IntRange(1, 2**32 - 1), help="This provider alone may read and run it.")
    @click.option("--rate-in", type=click.IntRange(0), help="Offer: base units per 10^6 units of input.")
    @click.option("--rate-out", type=click.IntRange(0), help="Offer: base units per 10^6 units of output.")
    @click.option("--units-out", type=click.IntRange(0, 2**32 - 1), help="Pay for at most so many units of output.")
    @click.option("--embeddings", is_flag=True, help="The model makes embeddings: no units of output are paid for.")
    @click.option("--custom-id", help="A name of yours for the job; it travels sealed.")
    @click.option(
        "--max-amount",
        type=click.IntRange(1),
        help="Refuse to pay more, in base units, fees included; one token unless set.  [env: SVC_MAX_AMOUNT]",
    )
    @functools.wraps(command)
    def with_order(**given: Any) -> Exit:
        terms = {name: value for name in _TERMS if (value := given.pop(name)) is not None}
        if given.pop("embeddings"):
            terms["endpoint"] = EMBEDDINGS
        max_amount = given.pop("max_amount")
        model, text, file, params = (given.pop(name) for name in ("model", "text", "file", "params"))
        model_input = read_input(text, file, sys.stdin.buffer)
        read_params = dict(read_param(param) for param in params)
        return command(order=OrderOptions(model, model_input, read_params, terms, max_amount), **given)

    return with_order


async def check_window(client: Client, output: Output, terms: Mapping[str, Any]) -> None:
    """Refuses a window that would be signed as another, and warns of one that nobody asks a price for, where no node
    tells whether the network takes it. Raises OrderRefused with the windows that there are."""
    window = terms.get("window", DEFAULT_WINDOW)
    if not is_window(window):
        there = (await client.market.windows(DEFAULT_WINDOW)).words
        message = f"--window {window} must be one of {WINDOW_FORMS}; this market has {there}"
        raise OrderRefused(message, code=WINDOW_REFUSED, param="window")
    if client.vouching.chain is None and ("rate_in" in terms or "rate_out" in terms):
        windows = await client.market.windows(window)
        if not windows.certain and window_seconds(window) not in windows.seconds:
            output.warn(f"nobody asks a price for {window}, and the network may refuse it; asked for: {windows.words}")
