"""Measure tabs against single jobs and against the model server called directly.

    python -m tests.bench.conversations [MODEL] [--requests 100] [--parallel 50] [--server URL]

Run it with the variables of `devnet env`. `--server` is the OpenAI-compatible server behind the provider. Gas is that
of all transactions in the blocks of post, claim and settle, so no other job may be bought during the run.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence

import anyio
import httpx

from common.inclusion.header import read_header
from svc.client import Client
from svc.core.windows import DEFAULT_WINDOW
from svc.tabs.tab import Tab

_QUESTION = "Name the first five planets of the solar system."
_MAX_TOKENS = 32


def _input(number: int, endpoint: str | None) -> dict[str, object]:
    text = f"{_QUESTION} ({number})"
    if endpoint == "/v1/chat/completions":
        return {"messages": [{"role": "user", "content": text}], "max_tokens": _MAX_TOKENS}
    return {"input": text, "max_output_tokens": _MAX_TOKENS}


async def _timed(tab: Tab, body: dict[str, object]) -> tuple[float, float]:
    """Return the seconds to the first chunk and to the whole answer."""
    began, first = time.perf_counter(), None
    stream = await tab.request(body)
    async for _ in stream:
        first = first or time.perf_counter() - began
    await stream.answer()
    whole = time.perf_counter() - began
    return first or whole, whole


async def _timed_server(http: httpx.AsyncClient, url: str, model: str, body: dict[str, object]) -> tuple[float, float]:
    began, first = time.perf_counter(), None
    request = {"model": model, "stream": True, **body}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=request) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:") and '"content"' in line:
                first = first or time.perf_counter() - began
    whole = time.perf_counter() - began
    return first or whole, whole


def _line(name: str, times: Sequence[tuple[float, float]]) -> str:
    firsts, wholes = ([each[at] * 1000 for each in times] for at in (0, 1))
    return (
        f"{name:<24} first {statistics.median(firsts):7.1f} ms   whole {statistics.median(wholes):7.1f} ms"
        f"   p95 {sorted(wholes)[int(0.95 * (len(wholes) - 1))]:7.1f} ms   n {len(times)}"
    )


async def _gas(client: Client, job_id: str) -> int:
    """Return the gas of the job's transactions."""
    chain = client.market_verifier.chain
    if chain is None:
        raise SystemExit("set SVC_RPC_URL")
    receipt = json.loads(await client.receipt(job_id))
    gas = {}
    node = chain.nodes[0]
    for step in receipt["steps"]:
        block = await node.call("eth_getBlockByNumber", hex(_number(step["header"])), False)
        for transaction in block["transactions"]:  # type: ignore[index,call-overload] # a block
            mined = await node.call("eth_getTransactionReceipt", transaction)
            gas[transaction] = int(mined["gasUsed"], 16)  # type: ignore[index,call-overload] # a receipt
    return sum(gas.values())


def _number(header: str) -> int:
    return read_header(bytes.fromhex(header[2:])).number


async def main(options: argparse.Namespace) -> None:
    async with Client(tab_direct=options.direct) as client:
        endpoint = (await client.models.get(options.model)).svc.endpoint
        if options.server:
            async with httpx.AsyncClient(timeout=120) as http:
                times = [
                    await _timed_server(http, options.server, options.model, _input(n, "/v1/chat/completions"))
                    for n in range(options.warm)
                ]
                print(_line("model server", times))
        cap = options.requests * 4 * _MAX_TOKENS + 65_536
        opened_at = time.perf_counter()
        async with client.tabs.open(options.model, units_out=cap, max_amount=10**9) as tab:
            print(f"opened in {time.perf_counter() - opened_at:.2f} s")
            await _timed(tab, _input(0, endpoint))
            times = [await _timed(tab, _input(n, endpoint)) for n in range(options.warm)]
            print(_line("tab, direct" if tab.is_direct else "tab, mailbox", times))
            left, times, began = options.requests - options.warm - 1, [], time.perf_counter()

            async def worker() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    times.append(await _timed(tab, _input(left, endpoint)))

            async with anyio.create_task_group() as tasks:
                for _ in range(min(options.parallel, max(0, left))):
                    tasks.start_soon(worker)
            if times:
                seconds = time.perf_counter() - began
                print(_line(f"{options.parallel} at a time", times), f"  {len(times) / seconds:.1f} requests/s")
        if tab.outcome is None:
            raise AssertionError("a closed tab has an outcome")
        gas = await _gas(client, tab.id)
        print(f"gas: {gas} for {tab.outcome.requests} requests, {gas / tab.outcome.requests:.0f} per request")
        if options.single:
            began = time.perf_counter()
            result = await client.run(options.model, _input(0, endpoint), window=DEFAULT_WINDOW)
            answered = time.perf_counter() - began
            await result.settled()
            gas = await _gas(client, result.job_id)
            print(f"single job: answer after {answered:.2f} s, {gas} gas")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo/text-small")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=50)
    parser.add_argument("--warm", type=int, default=20, help="requests one after another, for the latency")
    parser.add_argument("--server", help="address of the model server")
    parser.add_argument("--direct", choices=("public", "any", "off"), default="off")
    parser.add_argument("--single", action="store_true", help="buy a single job too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    anyio.run(main, _options(sys.argv[1:]))
