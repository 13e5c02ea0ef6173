"""The relayer's account with a keystore, a signing program and an HTTP signer, on a real chain. While a signer is down,
slow or wrong, nothing is stored or sent, and the op waits until the signer recovers."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eth_account import Account

from common.daemon.process import Fatal
from common.scalars import hex_of
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.run.config import Config
from coordinatord.run.signer import open_signer
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.relayer.running import BROADCAST, Scene, Stage, relay_into
from tests.integration.coordinatord.scene.stage import environment
from tests.support.coordinator import config_of
from tests.support.faults.rpc_proxy import ErrorAnswer, Fault, Hang, HttpStatus, Rewrite, RpcProxy, Truncate, rpc_proxy

PASSWORD = "not a good one"
# A signing program like an operator's. It manages the key itself.
PROGRAM = """
import json, sys
from pathlib import Path
from common.secp256k1 import Wallet
from common.transactions import Transaction
asked = json.load(sys.stdin)
number = lambda name: int(asked[name], 16)
told = Transaction(number("chainId"), number("nonce"), number("maxPriorityFeePerGas"), number("maxFeePerGas"),
                   number("gas"), bytes.fromhex(asked["to"][2:]), number("value"), bytes.fromhex(asked["data"][2:]))
assert "DATABASE_URL" not in __import__("os").environ
print("0x" + told.sign(Wallet(bytes.fromhex(Path(sys.argv[1]).read_text()))).raw.hex())
"""


@pytest.fixture
def key(world: World) -> str:
    return world.wallets.with_role("relayer")[0].private_key.removeprefix("0x")


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def configured(scene: Scene, **relayer: object) -> Config:
    given = environment(scene.world, scene.database_url, **relayer)
    del given["RELAYER_KEY"]
    return config_of(given)


def by_keystore(tmp_path: Path, key: str, _world: World) -> dict[str, object]:
    document = Account.encrypt(bytes.fromhex(key), PASSWORD, kdf="pbkdf2", iterations=2)
    return {
        "RELAYER_KEYSTORE": private(tmp_path / "keystore.json", json.dumps(document)),
        "RELAYER_KEYSTORE_PASSWORD": PASSWORD,
    }


def by_program(tmp_path: Path, key: str, world: World) -> dict[str, object]:
    script, held = private(tmp_path / "sign.py", PROGRAM), private(tmp_path / "key", key)
    return {
        "RELAYER_SIGNER_COMMAND": f"{sys.executable} '{script}' '{held}'",
        "RELAYER_ACCOUNT": world.wallets.with_role("relayer")[0].address,
        "signer_timeout_s": 30,
    }


def by_http(_tmp_path: Path, _key: str, world: World) -> dict[str, object]:
    """The node, which has its accounts' keys, acts as the HTTP signer: its method and response match."""
    return {
        "RELAYER_SIGNER_URL": world.anvil.rpc_url,
        "RELAYER_ACCOUNT": world.wallets.with_role("relayer")[0].address,
    }


@pytest.mark.parametrize("way", [by_keystore, by_program, by_http])
async def test_every_kind_of_signer_relays_without_leaking_keys(
    *,
    scene: Scene,
    key: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Path, str, World], dict[str, object]],
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("DATABASE_URL", "for the daemon alone")
    outcomes: list[object] = []
    config = configured(scene, **way(tmp_path, key, scene.world))
    async with open_signer(config) as signer, scene.stage() as stage:
        stage.start(signer)
        await relay_into(stage, outcomes)(scene.post())
        assert isinstance(outcomes[0], RelayMined)
        assert await stage.fetchval("select account from relay_txs") == signer.address
        await scene.check(stage)
    told = capfd.readouterr()
    assert key not in told.out + told.err + repr(signer) + repr(config)
    assert PASSWORD not in told.out + told.err + repr(config)


@asynccontextmanager
async def signing_over(scene: Scene, **settings: object) -> AsyncIterator[tuple[Stage, RpcProxy, AccountSigner]]:
    """Put the signer behind a proxy, separate from the node."""
    async with rpc_proxy(scene.anvil.rpc_url) as proxy:
        account = scene.world.wallets.with_role("relayer")[0].address
        given = {"RELAYER_SIGNER_URL": proxy.url, "RELAYER_ACCOUNT": account, "signer_timeout_s": 1}
        async with (
            open_signer(configured(scene, **given)) as signer,
            scene.stage(**settings) as stage,
        ):
            yield stage, proxy, signer


def signed_as(key: str, **changes: str) -> Callable[[Any, Any], str]:
    def sign(params: Any, _raw: Any) -> str:
        asked = {name: value for name, value in params[0].items() if name != "from"} | changes
        return str(Account.from_key(key).sign_transaction(asked).raw_transaction.to_0x_hex())

    return sign


OWN = "0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a"  # anvil's third account, the relayer
WRONG: dict[str, Fault] = {
    "away": HttpStatus("eth_signTransaction", 503),
    "silent": Hang("eth_signTransaction"),
    "cut off": Truncate("eth_signTransaction"),
    "unwilling": ErrorAnswer("eth_signTransaction", -32000, "signing not allowed by policy"),
    "nonsense": Rewrite("eth_signTransaction", lambda _params, _raw: "0x1234"),
    "an object": Rewrite("eth_signTransaction", lambda _params, raw: {"tx": raw}),
    "another account": Rewrite("eth_signTransaction", signed_as("0x" + "07" * 32)),
    "more gas": Rewrite("eth_signTransaction", signed_as(OWN, gas="0xffffff")),
    "another nonce": Rewrite("eth_signTransaction", signed_as(OWN, nonce="0x7")),
    "another call": Rewrite("eth_signTransaction", signed_as(OWN, data="0xdeadbeef")),
}


@pytest.mark.parametrize("fault", WRONG.values(), ids=WRONG)
async def test_faulty_signer_stores_nothing_and_the_op_waits(scene: Scene, fault: Fault) -> None:
    async with signing_over(scene) as (stage, proxy, signer), stage.relayed(scene.post()):
        account = {"account": hex_of(signer.address)}
        with proxy.fault(fault):
            stage.start(signer)
            with anyio.fail_after(60):
                while REGISTRY.get_sample_value("coordinatord_signer_failing", account) != 1:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            assert await stage.fetchval("select array_agg(state) from relays") == ["queued"]
            assert await stage.fetchval("select count(*) from relay_txs") == 0
        await stage.until("select state = 'mined' from relays")
        assert REGISTRY.get_sample_value("coordinatord_signer_failing", account) == 0
        assert await stage.fetchval("select count(*) from relay_tx_versions") == 1


async def test_signed_relays_finish_while_the_signer_is_down(scene: Scene) -> None:
    outcomes: list[object] = []
    first, second = scene.post(), scene.post()
    async with mining_by_hand(scene.anvil), signing_over(scene) as (stage, proxy, signer):
        stage.start(signer)
        async with anyio.create_task_group() as callers:
            callers.start_soon(relay_into(stage, outcomes), first)
            await stage.until(BROADCAST, 1)
            with proxy.fault(HttpStatus("eth_signTransaction", 503)):
                callers.start_soon(relay_into(stage, outcomes), second)
                await stage.until("select count(*) = 2 from relays")
                await scene.anvil.call("evm_mine")
                await stage.until("select count(*) = 1 from relays where state = 'mined'")
                assert await stage.fetchval("select count(*) from relays where state = 'queued'") == 1
            await stage.until(BROADCAST, 2)
            await scene.anvil.call("evm_mine")
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * 2
        await scene.check(stage)


async def test_unreadable_keystore_stops_the_start(scene: Scene, key: str, tmp_path: Path) -> None:
    given = by_keystore(tmp_path, key, scene.world)
    wrong = given | {"RELAYER_KEYSTORE_PASSWORD": "another"}
    without = {"RELAYER_KEYSTORE": given["RELAYER_KEYSTORE"]}
    for settings, said in (
        (wrong, r"^RELAYER_KEYSTORE .*keystore.json cannot be opened"),
        (without, r"^RELAYER_KEYSTORE_PASSWORD is required with RELAYER_KEYSTORE"),
    ):
        with pytest.raises(Fatal, match=said):
            async with open_signer(configured(scene, **settings)):
                pass
