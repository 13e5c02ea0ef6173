"""Commands of the market: models, prices, providers and the escrow's key."""

from typing import Final

import click

from svc.cli import tables
from svc.cli.connection import Connection, add_connection_options
from svc.cli.json_form import to_plain_values
from svc.cli.order_readers import open_order_readers
from svc.client import Client
from svc.market_verifier import VerificationSource

_NO_LIMIT: Final = None  # listings of the market are short


@click.command()
@click.argument("name", required=False, help="One model, with its parameters.")
@add_connection_options
async def models(connection: Connection, name: str | None) -> None:
    """List the models, or show one with its parameters.

    \b
      svc models
      svc models demo/text-small --json | jq .svc.params_schema
    """
    output = connection.output
    async with connection.client() as client:
        if name is None:
            listed = await client.models.list(limit=_NO_LIMIT)
            output.show_table(tables.models_table(listed), to_plain_values(listed))
            return
        model = await client.models.get(name)
    facts: list[tuple[str, str | None]] = [
        ("model", model.id),
        ("id", str(model.svc.model_id)),
        ("owned by", model.owned_by),
        ("accepts orders", "yes" if model.svc.enabled else "no"),
    ]
    properties = (model.svc.params_schema or {}).get("properties", {})
    facts += [(f"  {parameter}", _describe_schema(schema)) for parameter, schema in sorted(properties.items())]
    output.show_facts(facts, to_plain_values(model))


@click.command()
@click.option("--model", help="Only asks for this model.")
@click.option("--floors", is_flag=True, help="Show the lowest rates of each model and window instead.")
@add_connection_options
async def asks(connection: Connection, model: str | None, floors: bool) -> None:
    """List the asks of providers.

    Rates are in base units of the payment token per 10^6 units. A live provider can claim an order at or above its ask.
    The two rates of a floor may come from different providers.
    """
    async with connection.client() as client:
        model_names = await read_model_names(client)
        model_id = None if model is None else (await client.models.get(model)).svc.model_id
        if floors:
            lowest = await client.market.floors(model=model_id, limit=_NO_LIMIT)
            connection.output.show_table(tables.floors_table(lowest, model_names), to_plain_values(lowest))
        else:
            listed_asks = await client.market.asks(model=model_id, limit=_NO_LIMIT)
            connection.output.show_table(tables.asks_table(listed_asks, model_names), to_plain_values(listed_asks))


@click.command()
@click.argument("provider_id", type=click.IntRange(1, 2**32 - 1), required=False, help="One provider.")
@add_connection_options
async def providers(connection: Connection, provider_id: int | None) -> None:
    """List the providers, or show one."""
    async with connection.client() as client:
        model_names = await read_model_names(client)
        if provider_id is None:
            listed = await client.market.providers(limit=_NO_LIMIT)
            connection.output.show_table(tables.providers_table(listed, model_names), to_plain_values(listed))
        else:
            provider = await client.market.provider(provider_id)
            connection.output.show_table(tables.providers_table([provider], model_names), to_plain_values(provider))


@click.command()
@add_connection_options
async def escrow(connection: Connection) -> None:
    """Verify and show the key of the escrow.

    Open orders are sealed to this key. The coordinator's operator holds the key and can read these orders. The evidence
    proves only the kind of the escrow, not who operates it. Pin the operator's key with --escrow-key. Otherwise svc
    remembers the key at its first use (svc market show).
    """
    async with connection.client() as client:
        escrow_key = await client.escrow()
    evidence = escrow_key.evidence
    facts = [
        ("key", escrow_key.escrow_public_key),
        ("kind", evidence.type),
        ("bound to the key", "yes"),
        ("debug build", "yes" if evidence.debug else "no"),
        ("release", str(evidence.release)),
        ("issued", tables.format_time(escrow_key.issued_at)),
        ("open orders readable by", open_order_readers(evidence.type)),
        ("verified by", (VerificationSource.PINNED if connection.escrow_keys else VerificationSource.KNOWN).value),
    ]
    connection.output.show_facts(facts, to_plain_values(escrow_key) | {"verified": True})


async def read_model_names(client: Client) -> dict[int, str]:
    """Return the names of the models by their numeric ids."""
    return {model.svc.model_id: model.id for model in await client.models.list(limit=_NO_LIMIT)}


def _describe_schema(schema: object) -> str:
    """Describe the schema of a parameter in a few words. `--json` has the complete schema."""
    if schema is False:
        return "not accepted"
    if not isinstance(schema, dict):
        return "anything"
    words = [str(schema.get("type", "one of several forms" if "oneOf" in schema else "anything"))]
    if "enum" in schema:
        words.append("one of " + ", ".join(map(str, schema["enum"])))
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if minimum is not None or maximum is not None:
        words.append(f"{'' if minimum is None else minimum}..{'' if maximum is None else maximum}")
    return ", ".join(words)
