import pytest

from svc.core.sealing import SealedContainer


@pytest.mark.parametrize(("length", "fits"), [(15_679_488, True), (15_679_489, False)])
def test_container_up_to_the_limit_travels_in_the_body(length: int, fits: bool) -> None:
    assert SealedContainer(bytes(length), bytes(32)).fits_inline is fits
