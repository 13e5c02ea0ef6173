"""The oracle that runs with every relayer test: signed bytes are committed before a node gets them."""

from collections.abc import Sequence

import pytest

from coordinatord.chain.relayer import intake
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.broadcast import broadcast
from coordinatord.chain.relayer.coalesce import PlannedTx
from coordinatord.chain.relayer.in_flight import PendingTx
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.signers import SignerUnavailable
from coordinatord.storage.database.connections import Connection
from tests.integration.coordinatord.relayer.running import Scene, Stage
from tests.support.faults.rpc_proxy import SwallowAnswer
from tests.support.faults.write_ahead import WriteAhead


def send_inside_the_transaction(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the fault: send signed bytes at once, and commit their transaction afterwards."""
    sign = intake.sign_planned

    async def sign_and_send(
        connection: Connection, account: RelayerAccount, plans: Sequence[PlannedTx]
    ) -> tuple[list[PendingTx], SignerUnavailable | None]:
        signed, away = await sign(connection, account, plans)
        await broadcast(stage.rpc, signed)
        return signed, away

    monkeypatch.setattr(intake, "sign_planned", sign_and_send)


@pytest.mark.parametrize("fault", [None, SwallowAnswer("eth_sendRawTransaction")], ids=["answered", "answer lost"])
async def test_a_broadcast_before_the_commit_is_found_and_named(
    scene: Scene, write_ahead: WriteAhead, monkeypatch: pytest.MonkeyPatch, fault: SwallowAnswer | None
) -> None:
    async with scene.stage_behind_proxy() as (stage, proxy):
        send_inside_the_transaction(stage, monkeypatch)
        with proxy.fault(*([] if fault is None else [fault])):
            stage.start(scene.relayer)
            assert isinstance(await stage.relaying.relay(scene.post()), RelayMined)  # no other check would notice
        sent = await stage.fetchval(
            "select '0x' || encode(hash, 'hex') || ' (nonce ' || nonce || ')'"
            " from relay_tx_versions v join relay_txs t on t.id = v.tx_id"
        )
    assert write_ahead.violations == [f"I10: transaction {sent} was broadcast before its bytes were committed"]
    write_ahead.violations.clear()


async def test_broadcasts_are_checked_after_the_database_returns(database_url: str) -> None:
    away = WriteAhead("postgresql://127.0.0.1:1/nobody")
    raw = bytes.fromhex("02c20105")  # [chain 1, nonce 5]
    await away.before_broadcast([raw])
    assert away.violations == []
    assert "could not be looked up" in (await away.found())[0]
    away.database_url = database_url
    assert "(nonce 5) was broadcast before" in (await away.found())[0]
    await away.aclose()
