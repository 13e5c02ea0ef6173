"""Keys of relayers and escrows as an operator views them, and the accounts that spend gas."""

import re
from pathlib import Path

import pytest

from common.daemon.process import Fatal
from common.key_derivation import escrow_key
from common.secp256k1 import Wallet
from coordinatord.chain.relayer.budgets_sql import ALL_NEWCOMERS, TopSpender
from coordinatord.chain.relayer.transactions_sql import AccountUsage
from coordinatord.run.commands import spender_table
from coordinatord.run.config import read_config
from coordinatord.run.keys import key_rows, new_key, relayer_table
from tests.unit.coordinatord.environment import ENVIRONMENT

KEYS = [f"{n:02x}" * 32 for n in range(1, 5)]


def address(key: str) -> str:
    return "0x" + Wallet(bytes.fromhex(key)).address.hex()


def rows(**settings: str) -> list[tuple[str, str]]:
    return key_rows(read_config({**ENVIRONMENT, "RELAYER_KEY": KEYS[0], **settings}))


def test_new_key_is_its_owners_alone_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "relayer_key"
    made = new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text().strip()
    assert re.fullmatch(r"0x[0-9a-f]{64}", text)
    assert address(text[2:]) == made
    with pytest.raises(Fatal, match="File exists"):
        new_key(path)
    assert path.read_text().strip() == text


def test_keys_are_shown_by_their_public_side_and_use() -> None:
    assert rows() == [("relayer", address(KEYS[0]))]
    shown = rows(ESCROW_MODE="static", OPERATOR_KEY=f"{KEYS[2]},{KEYS[3]}")
    first, second = (escrow_key(bytes.fromhex(key)).public.raw.hex() for key in KEYS[2:])
    assert shown[1:] == [("escrow, announced", first), ("escrow, opens", second)]
    assert not any(key in public for key in KEYS for _, public in shown)


def test_operators_of_a_development_escrow_are_shown_as_accounts() -> None:
    shown = rows(ESCROW_MODE="mock", OPERATOR_KEY=f"{KEYS[2]},{KEYS[3]}")
    assert shown[1:] == [("operator, signs", address(KEYS[2])), ("operator, trusted", address(KEYS[3]))]


def test_relayers_table_shows_which_keys_are_needed() -> None:
    current, replaced, ended, foreign = (bytes([n]) * 20 for n in range(1, 5))
    uses = [
        AccountUsage(current, 3, 1),
        AccountUsage(replaced, 0, 120),
        AccountUsage(ended, 0, 7200),
        AccountUsage(foreign, 1, 86400),
    ]
    lines = relayer_table(uses, current).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["0x" + use.account.hex() for use in uses]
    assert lines[0].endswith("3 pending, last signed    0 min ago  relays")
    assert lines[2].endswith("0 pending, last signed  120 min ago  ended: its key is no longer needed")
    for line in (lines[1], lines[3]):
        assert "NOT ENDED: run `coordinatord drain` with its key" in line


def test_account_that_never_signed_is_shown() -> None:
    current = b"\1" * 20
    assert relayer_table([], current) == f"0x{current.hex()}  has not signed yet: relays"
    assert "has not signed" not in relayer_table([AccountUsage(current, 0, 5)], current)


def test_table_names_signers_and_lines_figures_up() -> None:
    table = spender_table(
        [
            TopSpender(b"\xab" * 20, "post", 1_500_000, 22_000_000),
            TopSpender(ALL_NEWCOMERS, "post", 0, 400),
            TopSpender(b"", "reclaim", 7, 7),
        ]
    )
    assert table.splitlines() == [
        "signer                                      kind     gas, this hour  gas, 24 hours",
        "0x" + "ab" * 20 + "  post          1,500,000     22,000,000",
        "all newcomers                               post                  0            400",
        "the coordinator                             reclaim               7              7",
    ]


def test_nothing_spent_is_said_so() -> None:
    assert spender_table([]) == "no gas was spent in the last 24 hours"
