from coordinatord.chain.relayer.budgets_sql import ALL_NEWCOMERS, TopSpender
from coordinatord.run.commands import spender_table


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
