import pytest

from coordinatord.api.escrow.generations import RETENTION_MS, Generation, Generations
from coordinatord.api.escrow.keys import KeyPair

EVERY, LEAD = 1000, 100


@pytest.fixture
def generations() -> Generations:
    return Generations(EVERY, LEAD)


def minted(generations: Generations, now: int) -> Generation:
    generation = generations.mint(now)
    generations.add([generation])
    return generation


def test_without_generations_one_is_due(generations: Generations) -> None:
    assert generations.is_due(0)
    assert generations.is_overdue(0)
    assert generations.newest_announced(0) is None


def test_first_generation_is_announced_at_once(generations: Generations) -> None:
    first = minted(generations, 50)
    assert generations.newest_announced(50) is first
    assert generations.newest_announced(49) is first  # on a clock that lags the minter's


def test_next_generation_is_minted_ahead(generations: Generations) -> None:
    first = minted(generations, 0)
    assert not generations.is_due(EVERY - LEAD - 1)
    assert generations.is_due(EVERY - LEAD)
    assert not generations.is_overdue(EVERY - 1)
    second = minted(generations, EVERY - LEAD)
    assert generations.newest_announced(EVERY - 1) is first
    assert generations.newest_announced(EVERY) is second
    assert not generations.is_due(EVERY)
    assert list(generations.keys_newest_first()) == [second.key, first.key]


def test_late_generation_is_announced_from_now(generations: Generations) -> None:
    minted(generations, 0)
    assert generations.is_overdue(5 * EVERY)
    late = minted(generations, 5 * EVERY)
    assert late.announced_from_ms == 5 * EVERY
    assert generations.newest_announced(5 * EVERY) is late


def test_generation_is_kept_while_its_jobs_can_be_claimed(generations: Generations) -> None:
    first = minted(generations, 0)
    # still announced: a generation never retires without a successor
    assert generations.find_expired(10 * RETENTION_MS) == []
    second = minted(generations, EVERY)
    assert generations.find_expired(EVERY + RETENTION_MS - 1) == []
    assert generations.find_expired(EVERY + RETENTION_MS) == [first]
    generations.erase([first])
    assert generations.oldest_first() == (second,)


def test_retention_covers_an_order_and_its_window() -> None:
    assert RETENTION_MS > 2 * 86_400_000


def test_instances_with_equal_generations_announce_the_same(generations: Generations) -> None:
    held = [Generation(KeyPair.generate(), 0) for _ in range(3)]
    other = Generations(EVERY, LEAD)
    generations.add(held)
    other.add(reversed(held))
    assert generations.oldest_first() == other.oldest_first()
    assert generations.newest_announced(0) is other.newest_announced(0)


def test_second_copy_of_a_held_key_is_wiped(generations: Generations) -> None:
    first = minted(generations, 0)
    secret = first.key.copy_secret()
    copy = Generation(KeyPair(secret), 0)
    assert generations.add([copy]) == []
    assert secret == bytes(32)
    assert len(generations) == 1
