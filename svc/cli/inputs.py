"""Input of an order: from an argument, a file or standard input."""

import functools
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs
import click

from common import escrow_evidence, strict_json
from common.pricing.model_input import IMAGES_ENDPOINT
from common.refusal import Refused
from svc.cli.exit_codes import Exit
from svc.cli.output import Output
from svc.client import Client
from svc.core.orders import (
    DEFAULT_WINDOW,
    WINDOW_FORMS,
    WINDOW_REFUSED,
    PreparedOrder,
    is_window,
    window_seconds,
)
from svc.errors import OrderRefused
from svc.records import Model

STDIN: Final = "-"

Input = str | dict[str, Any]


def read_input(text: str | None, file: str | None, stdin: BinaryIO) -> Input:
    """Return a text, or an object that is the model's own input.

    A file (or standard input) that holds one JSON object is that object; anything else is text.
    Raises click.UsageError.
    """
    if text is not None and file is not None:
        raise click.UsageError("give the input as an argument or as a file, not as both")
    if text is not None and text != STDIN:
        try:
            text.encode()
        except UnicodeEncodeError:  # how Python passes on bytes of arguments that it cannot read
            raise click.UsageError("the input is not UTF-8 text") from None
        return text
    if text is None and file is None and stdin.isatty():
        raise click.UsageError("no input: give it as an argument, with --file, or on standard input")
    return _text_or_object(read_bytes(file or STDIN, stdin), file or "standard input")


def text_input(text: str, model: Model) -> dict[str, Any]:
    """Return the input object for a text, under the key that the model's schema lists for it.

    The price of an image order follows from the image parameters that it names, so one is named.
    """
    schema = model.svc.params_schema or {}
    listed = schema.get("properties")
    properties = listed if isinstance(listed, dict) else {}
    endpoint = model.svc.endpoint
    makes_images = endpoint == IMAGES_ENDPOINT or (endpoint is None and "num_images" in properties)
    keys = ("prompt", "input", "messages") if makes_images else ("input", "prompt", "messages")
    default = "prompt" if makes_images else "input"
    key = next((key for key in keys if properties.get(key, False) is not False), default)
    content = [{"role": "user", "content": text}] if key == "messages" else text
    return {key: content, "num_images": 1} if makes_images else {key: content}


def read_bytes(file: str, stdin: BinaryIO) -> bytes:
    """Read the file or standard input, without a UTF-8 BOM: with one, JSON would be sold as plain text."""
    try:
        return (stdin.read() if file == STDIN else Path(file).read_bytes()).removeprefix(BOM_UTF8)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None


def _text_or_object(raw: bytes, name: str) -> Input:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{name} is not UTF-8 text") from None
    if not text.strip():
        raise click.UsageError(f"{name} is empty")
    if not text.lstrip().startswith("{"):
        return text.removesuffix("\n").removesuffix("\r")
    try:
        parsed = strict_json.parse(raw)
    except Refused as wrong:
        # A text may open with a brace; an object that misses a comma should not be sold as one.
        raise click.UsageError(f"{name} opens like a JSON object and is none: {wrong}") from None
    if not isinstance(parsed, dict):
        raise AssertionError("a JSON text that opens with a brace is an object")
    return parsed


def read_param(param: str) -> tuple[str, Any]:
    """Read `name=value`. A value that is valid JSON is that value (number, true, list); any other is a text."""
    name, equals, value = param.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--param {param}: write it as name=value")
    try:
        return name, strict_json.parse(value.encode("utf-8", "surrogatepass"))
    except Refused:
        return name, value


# The options of an order, shared by every command that makes one.

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


# Readers of an order, in words: those who can open what it seals.

_BY_KIND = {
    escrow_evidence.STATIC: "the provider that claims it, and whoever runs the coordinator: its operator holds the key",
    escrow_evidence.MOCK: "the provider that claims it, and whoever runs this development escrow",
}


def readers_of_open_orders(kind: str) -> str:
    return _BY_KIND[kind]


async def who_can_open(client: Client, designated: int) -> str:
    if designated:
        return f"provider {designated} alone"
    return readers_of_open_orders((await client.escrow()).evidence.type)
