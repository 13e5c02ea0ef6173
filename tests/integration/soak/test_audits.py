import asyncpg

from tests.soak.audits import install_audits


async def test_foreign_nonce_is_noted_although_a_reorg_gives_it_back(database_url: str) -> None:
    await install_audits(database_url)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
            " values (1, '\\x01', 7, '', '', 0, 'foreign', true)"
        )
        await connection.execute("update relay_txs set lost = false, purpose = 'fill'")
        noted = await connection.fetch("select account, nonce from foreign_history")
    finally:
        await connection.close()
    assert [tuple(row) for row in noted] == [(b"\x01", 7)]
