import pytest

from coordinatord.chain.relayer.fees import WINDOW, HeadBlock, HeadPlace, SeenBlocks


def block(number: int, branch: str = "a", parent_branch: str | None = None) -> HeadBlock:
    return HeadBlock(number, f"{branch}{number}", f"{parent_branch or branch}{number - 1}", 30_000_000, 1, ())


@pytest.fixture
def seen() -> SeenBlocks:
    blocks = SeenBlocks()
    for number in (10, 11, 12):
        blocks.add(block(number))
    return blocks


def test_before_anything_was_seen_every_block_lies_ahead() -> None:
    assert SeenBlocks().place(block(10)) is HeadPlace.AHEAD


@pytest.mark.parametrize(
    ("there", "place"),
    [
        (block(12), HeadPlace.SAME),
        (block(13), HeadPlace.NEXT),
        (block(15), HeadPlace.AHEAD),
        (block(11), HeadPlace.BEHIND),
        (block(12, "b", "a"), HeadPlace.FORK),
        (block(13, "b"), HeadPlace.FORK),
        (block(11, "b"), HeadPlace.FORK),
        (block(3), HeadPlace.FORK),
    ],
    ids=["same", "child", "gap", "lagging node", "sibling", "child of another", "shorter branch", "never seen"],
)
def test_a_block_is_placed_by_what_was_seen(seen: SeenBlocks, there: HeadBlock, place: HeadPlace) -> None:
    assert seen.place(there) is place


def test_after_a_restart_only_that_block_is_known(seen: SeenBlocks) -> None:
    seen.restart(block(12, "b"))
    assert seen.place(block(11)) is HeadPlace.FORK
    assert seen.place(block(13, "b")) is HeadPlace.NEXT


def test_only_the_window_is_remembered() -> None:
    blocks = SeenBlocks()
    for number in range(WINDOW + 10):
        blocks.add(block(number))
    assert blocks.place(block(5)) is HeadPlace.FORK
    assert blocks.place(block(20)) is HeadPlace.BEHIND
