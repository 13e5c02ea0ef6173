"""Private members of other packages that have no public equivalent. Each use has a test here."""

import pytest
from nacl._sodium import lib


@pytest.mark.parametrize(
    "name",
    ["crypto_box_seal", "crypto_box_seal_open", "crypto_scalarmult_base", "randombytes", "sodium_memzero"],
)
def test_pynacl_has_the_members_that_wipe_escrow_keys(name: str) -> None:
    assert callable(getattr(lib, name))
