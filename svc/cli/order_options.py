"""The options of an order, shared by every command that makes one."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import attrs
import click

from svc.cli.exits import Exit
from svc.cli.inputs import Input, read_input

_TERMS: Final = ("window", "provider", "rate_in", "rate_out", "units_out", "custom_id")
EMBEDDINGS: Final = "/v1/embeddings"


@attrs.frozen
class OrderOptions:
    """`terms` are those of the client's methods that take an order."""

    model: str
    input: Input
    terms: dict[str, Any]
    max_amount: int | None


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
        model_input = read_input(text, file, params, sys.stdin.buffer)
        return command(order=OrderOptions(model, model_input, terms, max_amount), **given)

    return with_order
