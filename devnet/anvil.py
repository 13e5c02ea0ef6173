"""The chain: anvil, with accounts that are the same in every run."""

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

CHAIN_ID: Final = 31337  # of a chain for tests; each devnet has an id of its own
# The phrase that every Ethereum tool uses for tests: its keys are public, and so is all that they hold.
MNEMONIC: Final = "test test test test test test test test test test test junk"
FUNDED_ACCOUNTS: Final = 20
# What public chains with the Osaka rules hold: a block's gas, and EIP-7825's cap of one transaction.
HARDFORK: Final = "osaka"
BLOCK_GAS_LIMIT: Final = 60_000_000
TX_GAS_CAP: Final = 1 << 24
# How far back calls may read and a reorganisation may reach.
PAST_STATES: Final = 256

# The node speaks plain HTTP, yet a client without this reads the machine's certificates: 25 ms for a call of one.
_NOBODY_TRUSTED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_CONTRACTS: Final = Path(__file__).parent.parent / "common" / "contracts"
_NODE_ARCHITECTURE: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@attrs.frozen
class Anvil:
    rpc_url: str
    child: Child

    async def call(self, method: str, *params: object) -> Any:
        """One JSON-RPC call; an error answer is an exception."""
        async with httpx.AsyncClient(trust_env=False, verify=_NOBODY_TRUSTED) as client:
            return await _call(client, self.rpc_url, method, *params)

    async def mine_every(self, seconds: int) -> None:
        """Blocks by the clock from now on, instead of one for each transaction."""
        await self.call("evm_setIntervalMining", seconds)


def binary(contracts: Path = _CONTRACTS) -> Path:
    """The native program that npm installed; the package's own wrapper would stand between us and it."""
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
    """A fresh chain that mines a block for each transaction (see `Anvil.mine_every`).

    `block_gas_limit` is for measurements that would otherwise measure this limit; they say so by name. The cap of one
    transaction holds on every chain.
    """
    command = (
        str(binary()),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--chain-id", str(chain_id)),
        *("--mnemonic", MNEMONIC, "--accounts", str(FUNDED_ACCOUNTS), "--balance", "1000000"),
        *("--hardfork", HARDFORK, "--gas-limit", str(block_gas_limit), "--enable-tx-gas-limit"),
        "--no-request-size-limit",  # batched calls pass its default of 2 MB
        # In memory alone: by default it writes every past state under its home, gigabytes in a long run.
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
