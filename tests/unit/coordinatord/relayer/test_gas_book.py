from coordinatord.relayer.gas_book import GasBook

TARGET = b"\x01" * 20
CALL = b"\xaa\xbb\xcc\xdd" + b"\x01" * 60


def test_nothing_is_known_of_a_new_kind() -> None:
    book = GasBook()
    book.learn(TARGET, CALL, 100_000)
    assert book.limit(TARGET, b"\x00" + CALL[1:]) is None
    assert book.limit(b"\x02" * 20, CALL) is None


def test_the_limit_lies_above_the_dearest_seen() -> None:
    book = GasBook()
    for estimate in (100_000, 160_000, 90_000):
        book.learn(TARGET, CALL, estimate)
    limit = book.limit(TARGET, CALL)
    assert limit is not None
    assert 160_000 < limit < 200_000


def test_ops_of_another_size_are_another_kind() -> None:
    book = GasBook()
    book.learn(TARGET, CALL, 100_000)
    assert book.limit(TARGET, CALL + bytes(4096)) is None
