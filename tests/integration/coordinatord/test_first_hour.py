"""The commands of docs/operators/first-market.md give the page's output.

`RECORD=FILE pytest` on this module writes a new recording to the file.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import httpx
import pytest
from web3 import Web3

from coordinatord.market.node import connect
from devnet.accounts import DevWallets
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from tests.integration.coordinatord.market.ground import PUBLIC_CHAIN, issued_token, public_chain, rpc

PAGE: Final = Path(__file__).parents[3] / "docs" / "operators" / "first-market.md"
# Values that differ between runs: addresses, hashes, ports and paths, then every number.
_VOLATILE: Final = (
    (re.compile(r"0x[0-9a-fA-F]{40,}|0x[0-9a-fA-F]+…[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"bafkrei[a-z2-7]+"), "bafkrei…"),
    (re.compile(r"https?://[a-z0-9.:-]+"), "http://…"),
    (re.compile(r"[+-]?[0-9]+([.,][0-9]+)*"), "#"),
    (re.compile(r" +"), " "),
)


def recorded() -> list[tuple[str, str]]:
    """Return each command of the page with its output."""
    page = PAGE.read_text(encoding="utf-8")
    text = "".join(re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def alike(text: str) -> list[str]:
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@attrs.define
class Operator:
    """A folder, and a shell that keeps its variables."""

    folder: Path
    environment: dict[str, str]
    node: Web3

    def type(self, command: str) -> str:
        state = self.folder / ".state"
        script = f'if test -e "{state}"; then . "{state}"; fi\n{command}\ndeclare -px > "{state}"'
        output = self.folder / ".output"  # a file, because background programs would keep a pipe open
        with output.open("wb") as said:
            subprocess.run(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                check=False,
            )
        return output.read_text(encoding="utf-8")

    def fund(self, said: str) -> None:
        """Send native funds to the account that a command created."""
        for account in re.findall(r"0x[0-9a-fA-F]{40}\b", said):
            rpc(self.node, "anvil_setBalance", account, hex(10**18))

    def write_files(self, relayer: str, token: str, wallets: DevWallets) -> None:
        """Write the files that the page describes: the market file, and the owner's key."""
        [terms] = re.findall(r"^cat > market.toml <<END\n(.*?)^END$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        owner, treasury = wallets.with_role("client")[1].address, wallets.treasury.address
        named = {"CHAIN_ID": PUBLIC_CHAIN, "TOKEN": token, "OWNER": owner, "TREASURY": treasury, "RELAYER": relayer}
        for name, value in named.items():
            terms = terms.replace(f"${name}", str(value))
        (self.folder / "market.toml").write_text(terms)
        (self.folder / "owner.key").write_text(wallets.with_role("client")[1].private_key)
        (self.folder / "owner.key").chmod(0o600)


@contextmanager
def operator_at_work(folder: Path, wallets: DevWallets, settings: dict[str, str]) -> Iterator[tuple[Operator, str]]:
    """Yield the operator, and the token of the market."""
    folder.mkdir()
    with public_chain(folder.parent) as url, connect(url) as node:
        settings = settings | {"RPC_URL": url, "ADDRESSES_FILE": "addresses.json"}
        (folder / "coordinatord.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # Pass nothing else from this process: the page sets all other variables itself.
        environment = {"PATH": path, "RPC_URL": url, "PGSSLMODE": "disable", "COLUMNS": "120", "PORT": settings["PORT"]}
        yield Operator(folder, environment, node), issued_token(node, wallets)


@pytest.fixture(scope="module")
def database_template() -> str:
    """Empty, as on the first day."""
    return "template1"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_first_hour_says_what_is_recorded(
    tmp_path: Path, wallets: DevWallets, database_url: str, pin_store: PinStoreService
) -> None:
    port = pick_free()
    settings = {
        "DATABASE_URL": database_url,
        "PIN_STORE_ENDPOINT": pin_store.endpoint,
        "PIN_STORE_KEY": pin_store.key,
        "PIN_STORE_SECRET": pin_store.secret,
        "PIN_STORE_BUCKET": pin_store.bucket,
        "PORT": str(port),
        "METRICS_PORT": "0",
        "RELAY_MAX_FEE_GWEI": "50",
        "RELAY_MAX_TIP_GWEI": "2",
    }
    told = []
    with operator_at_work(tmp_path / "operator", wallets, settings) as (operator, token):
        for command, _ in recorded():
            said = operator.type(command.replace("localhost:8402", f"localhost:{port}"))
            told.append((command, said))
            if " new-key " in command:
                operator.fund(said)
            if command.startswith("coordinatord new-key"):
                operator.write_files(said.split()[-1], token, wallets)
        assert httpx.get(f"http://localhost:{port}/healthz", trust_env=False).status_code == 200
        operator.type("kill $SERVING; while kill -0 $SERVING 2>/dev/null; do sleep 0.05; done")
    if wanted := os.environ.get("RECORD"):
        Path(wanted).write_text("".join(f"$ {command}\n{said}" for command, said in told))
    assert [(command, alike(said)) for command, said in told] == [(c, alike(said)) for c, said in recorded()]
