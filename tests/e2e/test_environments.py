"""Environments that take seconds. `make environments` runs all of them."""

import pytest

from tests.environments.case import Case
from tests.environments.quick import QUICK
from tests.environments.room import room


@pytest.mark.long
@pytest.mark.timeout(300)  # several start two devnets one after the other
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_devnet_holds_in(case: Case) -> None:
    if (reason := case.why_not()) is not None:
        pytest.skip(reason)
    with room() as place:
        case.run(place)
