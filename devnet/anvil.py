"""Chain of the devnet: anvil, with the same accounts in every run."""

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

from devnet.child import Child, Program, running
from devnet.errors import DevnetError
from devnet.ports import LOOPBACK

CHAIN_ID: Final = 31337  # for tests; each devnet has a random id
# The phrase that Ethereum tools use for tests. Its keys are public.
MNEMONIC: Final = "test test test test test test test test test test test junk"
FUNDED_ACCOUNTS: Final = 20
# Limits of public chains under the Osaka rules: gas of a block, and EIP-7825's gas cap of a transaction.
HARDFORK: Final = "osaka"
BLOCK_GAS_LIMIT: Final = 60_000_000
TX_GAS_CAP: Final = 1 << 24
# Number of blocks that calls can read back and a reorganisation can undo.
PAST_STATES: Final = 256

# anvil serves plain HTTP. Without this, each client loads the system's certificates, which takes 25 ms.
_NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_CONTRACTS: Final = Path(__file__).parent.parent / "common" / "contracts"
_NODE_ARCHITECTURE: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@attrs.frozen
class Anvil:
    rpc_url: str
    child: Child

    async def call(self, method: str, *params: object) -> Any:
        """Make one JSON-RPC call. Raises RuntimeError for an error response."""
        async with httpx.AsyncClient(trust_env=False, verify=_NO_CERTIFICATES) as client:
            return await _call(client, self.rpc_url, method, *params)

    async def mine_every(self, seconds: int) -> None:
        """Mine a block every `seconds`, instead of one for each transaction."""
        await self.call("evm_setIntervalMining", seconds)


def binary(contracts: Path = _CONTRACTS) -> Path:
    """Return the native program from the npm package. Skips npm's wrapper script, which would be the parent process."""
    architecture = _NODE_ARCHITECTURE.get(platform.machine().lower(), platform.machine())
    package = contracts / "node_modules" / "@foundry-rs" / f"anvil-{sys.platform}-{architecture}"
    program = package / "bin" / "anvil"
    if not program.is_file():
        raise DevnetError(f"anvil is not installed ({program} is missing): run `make setup`")
    return program


@asynccontextmanager
async def running_anvil(
    port: int, home: Path, logs: Path, *, chain_id: int = CHAIN_ID, block_gas_limit: int = BLOCK_GAS_LIMIT
) -> AsyncIterator[Anvil]:
    """Run a new chain that mines a block for each transaction (see `Anvil.mine_every`).

    Benchmarks raise `block_gas_limit` if they would otherwise only measure this limit. The gas cap of a transaction
    always applies.
    """
    command = (
        str(binary()),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--chain-id", str(chain_id)),
        *("--mnemonic", MNEMONIC, "--accounts", str(FUNDED_ACCOUNTS), "--balance", "1000000"),
        *("--hardfork", HARDFORK, "--gas-limit", str(block_gas_limit), "--enable-tx-gas-limit"),
        "--no-request-size-limit",  # batched calls exceed the default of 2 MB
        # Keep past states in memory. By default anvil writes all of them to disk, gigabytes in a long run.
        *("--prune-history", str(PAST_STATES)),
        "--quiet",
    )
    program = Program("anvil", command, logs / "anvil.log", environment={"HOME": str(home)})
    async with running(program) as child, httpx.AsyncClient(trust_env=False) as client:
        url = f"http://{LOOPBACK}:{port}"

        async def answers() -> bool:
            try:
                return int(await _call(client, url, "eth_chainId"), 16) == chain_id
            except httpx.TransportError:
                return False

        await child.wait_until(answers)
        yield Anvil(url, child)


async def _call(client: httpx.AsyncClient, url: str, method: str, *params: object) -> Any:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = json.loads((await client.post(url, json=request)).content)
    if "error" in answer:
        raise RuntimeError(f"{method}: {answer['error']}")
    return answer["result"]
