import pytest

from coordinatord.chain.head import BlockPosition, ChainHead

WINDOW = 256
Block = tuple[int, str, str]  # number, hash, parent hash


def block(number: int, branch: str = "a", parent_branch: str | None = None) -> Block:
    return number, f"{branch}{number}", f"{parent_branch or branch}{number - 1}"


@pytest.fixture
def seen() -> ChainHead:
    blocks = ChainHead(WINDOW)
    for number in (10, 11, 12):
        blocks.add(*block(number)[:2])
    return blocks


def test_every_block_is_ahead_of_an_unknown_head() -> None:
    assert ChainHead(WINDOW).classify(*block(10)) is BlockPosition.AHEAD


@pytest.mark.parametrize(
    ("there", "place"),
    [
        (block(12), BlockPosition.SAME),
        (block(13), BlockPosition.NEXT),
        (block(15), BlockPosition.AHEAD),
        (block(11), BlockPosition.BEHIND),
        (block(12, "b", "a"), BlockPosition.FORK),
        (block(13, "b"), BlockPosition.FORK),
        (block(11, "b"), BlockPosition.FORK),
        (block(3), BlockPosition.BEHIND),
    ],
    ids=["same", "child", "gap", "lagging node", "sibling", "child of another", "shorter branch", "never seen"],
)
def test_block_is_placed_relative_to_the_known_head(seen: ChainHead, there: Block, place: BlockPosition) -> None:
    assert seen.classify(*there) is place


def test_after_a_restart_only_that_block_is_known(seen: ChainHead) -> None:
    seen.restart(12, "b12")
    assert seen.classify(*block(11)) is BlockPosition.BEHIND
    assert seen.classify(*block(13, "b")) is BlockPosition.NEXT


def test_only_the_window_is_remembered() -> None:
    blocks = ChainHead(WINDOW)
    for number in range(WINDOW + 10):
        blocks.add(*block(number)[:2])
    assert blocks.classify(*block(5, "b")) is BlockPosition.BEHIND
    assert blocks.classify(*block(20, "b")) is BlockPosition.FORK
    assert blocks.classify(*block(20)) is BlockPosition.BEHIND


def test_after_going_back_the_ancestor_is_the_head(seen: ChainHead) -> None:
    seen.forget_above(11)
    assert (seen.head_number, seen.head_hash) == (11, "a11")
    assert seen.classify(*block(12, "b", "a")) is BlockPosition.NEXT
