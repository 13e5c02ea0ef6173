import traceback

import pytest

from common import box
from common.key_derivation import escrow_key
from coordinatord.api.escrow.generations import Generation
from coordinatord.api.escrow.keys import KeyPair, open_with_any, seal_secret, wipe

SECRET = bytes(range(32))


def test_key_of_an_operator_is_the_derived_one() -> None:
    assert KeyPair.from_operator_key(SECRET).public == escrow_key(SECRET).public


def test_wrap_opens_only_with_its_own_key() -> None:
    one, two, other = KeyPair.generate(), KeyPair.generate(), KeyPair.generate()
    assert open_with_any((one, two), box.seal(two.public, SECRET)) == SECRET
    assert open_with_any((one, two), box.seal(other.public, SECRET)) is None
    assert one.open(b"shorter than any sealed box") is None


def test_erased_key_opens_nothing_any_more() -> None:
    secret = bytearray(SECRET)
    key = KeyPair(secret)
    sealed = box.seal(key.public, b"seed")
    key.erase()
    assert secret == bytes(32)
    assert key.open(sealed) is None


def test_box_of_a_secret_message_opens_for_its_recipient() -> None:
    key, message = KeyPair.generate(), bytearray(b"keys")
    assert key.open(seal_secret(key.public, message)) == b"keys"
    wipe(message)
    assert message == bytes(4)


def test_secret_shows_in_no_repr_and_in_no_traceback() -> None:
    key = KeyPair(bytearray(SECRET))
    generation = Generation(key, 1)
    with pytest.raises(ValueError, match="secret key must have 32 bytes") as wrong:
        KeyPair(bytearray(SECRET + SECRET))
    shown = repr(key) + repr(generation) + repr([key]) + "".join(traceback.format_exception(wrong.value))
    assert SECRET.hex() not in shown
    assert repr(bytes(SECRET))[2:-1] not in shown
    assert key.public.raw.hex() in shown


def test_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        KeyPair(bytearray(31))
