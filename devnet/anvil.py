"""Run the devnet's chain: an anvil node with the same accounts in every run."""

import json
import platform
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from devnet.child import Child, Program, run_program
from devnet.errors import DevnetError
from devnet.ports import LOOPBACK

CHAIN_ID: Final = 31337  # for tests; a devnet has a random id by default
# Test mnemonic of Ethereum tools. Its keys are public.
MNEMONIC: Final = "test test test test test test test test test test test junk"
FUNDED_ACCOUNT_COUNT: Final = 20

# Hard fork, gas limit per block and gas cap per transaction (EIP-7825), as on public chains since the Osaka fork.
HARDFORK: Final = "osaka"
BLOCK_GAS_LIMIT: Final = 60_000_000
TX_GAS_CAP: Final = 1 << 24
# Number of past blocks whose state anvil keeps. Reads of old state and reorganisations cannot go further back.
PAST_STATE_COUNT: Final = 256


# anvil serves plain HTTP. Without this empty context, each client loads the system's certificates, which takes 25 ms.
_EMPTY_SSL_CONTEXT: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_CALL_TIMEOUT_S: Final = 60.0  # long enough for a busy machine

_CONTRACTS_FOLDER: Final = Path(__file__).parent.parent / "common" / "contracts"
_NPM_ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@attrs.frozen
class Anvil:
    rpc_url: str
    child: Child

    async def call(self, method: str, *params: object) -> Any:
        """Make one JSON-RPC call. Raise RuntimeError for an error response."""
        async with httpx.AsyncClient(trust_env=False, verify=_EMPTY_SSL_CONTEXT, timeout=_CALL_TIMEOUT_S) as client:
            return await _call_node(client, self.rpc_url, method, *params)

    async def mine_every(self, seconds: int) -> None:
        """Mine a block every `seconds`, instead of a block for each transaction."""
        await self.call("evm_setIntervalMining", seconds)


def find_anvil(contracts: Path = _CONTRACTS_FOLDER) -> Path:
    """Return anvil's native binary. npm's wrapper script would start a child that could outlive the devnet."""
    architecture = _NPM_ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    package = contracts / "node_modules" / "@foundry-rs" / f"anvil-{sys.platform}-{architecture}"
    program = package / "bin" / "anvil"
    if not program.is_file():
        raise DevnetError(f"anvil is not installed ({program} is missing): run `make setup`")
    return program


@asynccontextmanager
async def running_anvil(
    port: int,
    home: Path,
    logs: Path,
    *,
    chain_id: int = CHAIN_ID,
    block_gas_limit: int = BLOCK_GAS_LIMIT,
    kept_transaction_blocks: int | None = None,
) -> AsyncIterator[Anvil]:
    """Run a new chain that mines a block for each transaction. `Anvil.mine_every` changes this.

    Benchmarks raise `block_gas_limit`, which would otherwise limit their throughput. The gas cap per transaction stays.
    `kept_transaction_blocks` limits the number of blocks whose transactions and logs are kept. Without this
    limit, the memory of a node that runs for days grows by gigabytes.
    """
    command = (
        str(find_anvil()),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--chain-id", str(chain_id)),
        *("--mnemonic", MNEMONIC, "--accounts", str(FUNDED_ACCOUNT_COUNT), "--balance", "1000000"),
        *("--hardfork", HARDFORK, "--gas-limit", str(block_gas_limit), "--enable-tx-gas-limit"),
        "--no-request-size-limit",  # batched calls exceed the default of 2 MB
        # Keep only recent states, in memory. By default anvil writes all states to disk, gigabytes in a long run.
        *("--prune-history", str(PAST_STATE_COUNT)),
        *(() if kept_transaction_blocks is None else ("--transaction-block-keeper", str(kept_transaction_blocks))),
        "--quiet",
    )
    program = Program("anvil", command, logs / "anvil.log", environment={"HOME": str(home)})
    async with run_program(program) as child, httpx.AsyncClient(trust_env=False) as client:
        url = f"http://{LOOPBACK}:{port}"

        async def answers() -> bool:
            try:
                return int(await _call_node(client, url, "eth_chainId"), 16) == chain_id
            except httpx.TransportError:
                return False

        await child.wait_until(answers)
        yield Anvil(url, child)


async def _call_node(client: httpx.AsyncClient, url: str, method: str, *params: object) -> Any:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = json.loads((await client.post(url, json=request)).content)
    if "error" in answer:
        raise RuntimeError(f"{method}: {answer['error']}")
    return answer["result"]
