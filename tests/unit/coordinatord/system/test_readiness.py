import pytest

from coordinatord.api.system.readiness import ReadinessReport, judge_readiness
from coordinatord.chain.indexer.position_sql import IndexPosition


def at(block: int, *, rebuilding: bool = False) -> IndexPosition:
    return IndexPosition(block, b"\1" * 32, 1_700_000_000, rebuilding)


@pytest.mark.parametrize(
    ("position", "head", "report"),
    [
        (at(100), 107, ReadinessReport(True, "ready", 100, 107, 7)),
        (at(100), 108, ReadinessReport(False, "trailing", 100, 108, 8)),
        (at(100), 98, ReadinessReport(True, "ready", 100, 98, -2)),
        (at(100), 92, ReadinessReport(False, "trailing", 100, 92, -8)),
        (None, 5, ReadinessReport(False, "cold_start", None, 5, None)),
        (at(100, rebuilding=True), 100, ReadinessReport(False, "reorg", 100, 100, 0)),
        (at(100), None, ReadinessReport(False, "chain_unreachable", None, None, None)),
        (None, None, ReadinessReport(False, "chain_unreachable", None, None, None)),
    ],
)
def test_report_names_the_reason(position: IndexPosition | None, head: int | None, report: ReadinessReport) -> None:
    assert judge_readiness(position, head, 7) == report


def test_emptied_index_is_at_no_negative_block() -> None:
    assert judge_readiness(at(-1, rebuilding=True), 5, 7).cursor == 0
