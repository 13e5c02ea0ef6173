from coordinatord.chain.relayer.repair import examine


def test_all_is_well_when_pending_ones_fill_the_range() -> None:
    found = examine(5, 8, [5, 6, 7])
    assert (found.used, found.suspects) == ((), ())


def test_a_new_account_starts_at_the_chains_count() -> None:
    assert examine(42, None, []).suspects == ()


def test_pending_ones_below_the_floor_are_used() -> None:
    assert examine(7, 8, [5, 6, 7]).used == (5, 6)


def test_a_missing_one_between_floor_and_next_is_suspect() -> None:
    assert examine(5, 9, [6, 8]).suspects == (5, 7)


def test_a_floor_far_too_low_makes_few_suspects() -> None:
    assert len(examine(0, 1_000_000, []).suspects) == 256
    assert len(examine(0, 1_000_000, [5, 7]).suspects) == 256


def test_unknown_bytes_in_a_pool_are_not_outbid() -> None:
    assert examine(5, 6, [], pool_end=8).suspects == ()


def test_nonces_behind_unknown_bytes_in_a_pool_are_suspects() -> None:
    assert examine(5, 9, [7], pool_end=7).suspects == (8,)


def test_lost_nonce_with_known_bytes_is_a_suspect() -> None:
    assert examine(5, 6, [], pool_end=6, lost=[5]).suspects == (5,)
