"""Buy one answer with SyncClient, then three at once with Client, which works on asyncio and trio."""

import anyio

from svc import Client, SyncClient

MODEL = "demo/text-small"


def question(country: str) -> dict[str, object]:
    return {"input": f"What is the capital of {country}?", "max_output_tokens": 32}


def ask_once() -> None:
    with SyncClient() as client:
        print(f"sync: {client.run(MODEL, question('Japan'), window='1h').text}")


async def ask_together() -> None:
    async with Client() as client, anyio.create_task_group() as tasks:

        async def ask(country: str) -> None:
            result = await client.run(MODEL, question(country), window="1h")
            print(f"async: {result.text}")

        for country in ("Peru", "Norway", "Egypt"):
            tasks.start_soon(ask, country)


ask_once()
anyio.run(ask_together)
