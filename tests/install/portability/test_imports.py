"""Every module of svc can be imported on the other platform."""

import importlib
import pkgutil

import pytest

import svc
from common import keccak


@pytest.mark.parametrize("name", [each.name for each in pkgutil.walk_packages(svc.__path__, "svc.")])
def test_module_is_imported(name: str) -> None:
    assert importlib.import_module(name).__name__ == name


def test_keccak_fallback_package_gives_the_same_hash() -> None:
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    pieces = keccak.Keccak256()
    for piece in (b"transfer", memoryview(b"(address,"), bytearray(b"uint256)")):
        pieces.update(piece)
    assert keccak.keccak256(b"").hex() == keccak.Keccak256().digest().hex() == empty
    assert pieces.digest()[:4].hex() == "a9059cbb"
