"""The replication row of `coordinatord check`."""

import pytest

from common.checks import CheckResult
from coordinatord.run.checks.database import replication_row
from coordinatord.storage.database.replication_sql import Replication


def _state(names: str, standbys: int, *, commits: str = "on", fsync: bool = True) -> Replication:
    return Replication(names, commits, fsync, standbys, synchronous_count=standbys, hidden_count=0, lag_s=0.0)


@pytest.mark.parametrize(
    ("state", "result", "says"),
    [
        (_state("", 0), None, "asynchronous, 0 standbys"),
        (_state("a", 1, commits="local"), None, "asynchronous, 1 standbys"),
        (_state("a", 0), CheckResult.WRONG, "no standby is connected"),
        (_state("a", 1), None, "a standby that hangs stops the market"),
        (_state("*", 1), None, "a standby that hangs stops the market"),
        (_state("FIRST 2 (a, b)", 2), None, "a standby that hangs stops the market"),
        (_state("ANY 1 (a, b)", 1), None, "a standby that hangs stops the market"),
        (_state("ANY 1 (a, b)", 2), CheckResult.RIGHT, "1 of 2 standbys may fail"),
        (_state("a, b", 2), CheckResult.RIGHT, "1 of 2 standbys may fail"),
        (_state("2 (*)", 3), CheckResult.RIGHT, "1 of 3 standbys may fail"),
        (_state("ANY 1 (a, b)", 2, fsync=False), None, "fsync is off"),
    ],
)
def test_row_states_the_cost_of_a_failure(state: Replication, result: CheckResult | None, says: str) -> None:
    row = replication_row(state)
    assert row.result is result
    assert says in row.detail
