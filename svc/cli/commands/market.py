"""Commands about the market: models, prices, providers, and the key that open orders are sealed to."""

from typing import Final

import click

from svc.cli import tables
from svc.cli.connection import Connection, connected
from svc.cli.json_form import wire_form
from svc.cli.order_readers import readers_of_open_orders
from svc.client import Client
from svc.vouching import Voucher

_ALL: Final = None  # a listing of the market is short


@click.command()
@click.argument("name", required=False, help="One model, with the parameters that it takes.")
@connected
async def models(connection: Connection, name: str | None) -> None:
    """List the models, or show one with its parameters.

    \b
      svc models
      svc models demo/text-small --json | jq .svc.params_schema
    """
    output = connection.output
    async with connection.client() as client:
        if name is None:
            listed = await client.models.list(limit=_ALL)
            output.table(tables.models(listed), wire_form(listed))
            return
        model = await client.models.get(name)
    facts: list[tuple[str, str | None]] = [
        ("model", model.id),
        ("id", str(model.svc.model_id)),
        ("owned by", model.owned_by),
        ("takes orders", "yes" if model.svc.enabled else "no"),
    ]
    properties = (model.svc.params_schema or {}).get("properties", {})
    facts += [(f"  {parameter}", _described(schema)) for parameter, schema in sorted(properties.items())]
    output.facts(facts, wire_form(model))


@click.command()
@click.option("--model", help="Of this model alone.")
@click.option("--floors", is_flag=True, help="The lowest rates of each model and window instead.")
@connected
async def asks(connection: Connection, model: str | None, floors: bool) -> None:
    """List what providers ask.

    Rates are in base units of the payment token per 10^6 units. An order whose rates are at or above a live provider's
    ask can be claimed by it. The two rates of a floor may be those of two providers.
    """
    async with connection.client() as client:
        names = await names_of(client)
        model_id = None if model is None else (await client.models.get(model)).svc.model_id
        if floors:
            lowest = await client.market.floors(model=model_id, limit=_ALL)
            connection.output.table(tables.floors(lowest, names), wire_form(lowest))
        else:
            asked = await client.market.asks(model=model_id, limit=_ALL)
            connection.output.table(tables.asks(asked, names), wire_form(asked))


@click.command()
@click.argument("provider_id", type=click.IntRange(1, 2**32 - 1), required=False, help="One provider.")
@connected
async def providers(connection: Connection, provider_id: int | None) -> None:
    """List the providers, or show one."""
    async with connection.client() as client:
        names = await names_of(client)
        if provider_id is None:
            listed = await client.market.providers(limit=_ALL)
            connection.output.table(tables.providers(listed, names), wire_form(listed))
        else:
            provider = await client.market.provider(provider_id)
            connection.output.table(tables.providers([provider], names), wire_form(provider))


@click.command()
@connected
async def escrow(connection: Connection) -> None:
    """Show the escrow's key once its evidence was verified.

    Open orders are sealed to it: whoever holds it can read them, and that is whoever runs the coordinator. The evidence
    ties the key to the escrow's kind and proves no more; that it is the right operator's is for you to know, by pinning
    it with --escrow-key; else it is remembered at the first use (svc market show).
    """
    async with connection.client() as client:
        offered = await client.escrow()
    evidence = offered.evidence
    facts = [
        ("key", offered.escrow_public_key),
        ("kind", evidence.type),
        ("bound to the key", "yes"),
        ("debug build", "yes" if evidence.debug else "no"),
        ("release", str(evidence.release)),
        ("issued", tables.moment(offered.issued_at)),
        ("open orders can be opened by", readers_of_open_orders(evidence.type)),
        ("vouched for by", (Voucher.PINNED if connection.escrow_keys else Voucher.KNOWN).value),
    ]
    connection.output.facts(facts, wire_form(offered) | {"verified": True})


async def names_of(client: Client) -> dict[int, str]:
    return {model.svc.model_id: model.id for model in await client.models.list(limit=_ALL)}


def _described(schema: object) -> str:
    """A parameter's schema in a few words; --json has it whole."""
    if schema is False:
        return "not taken"
    if not isinstance(schema, dict):
        return "anything"
    words = [str(schema.get("type", "one of several forms" if "oneOf" in schema else "anything"))]
    if "enum" in schema:
        words.append("one of " + ", ".join(map(str, schema["enum"])))
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None or most is not None:
        words.append(f"{'' if least is None else least}..{'' if most is None else most}")
    return ", ".join(words)
