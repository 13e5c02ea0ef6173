"""Environments that take seconds. `python -m tests.install.environments` runs all of them."""

import pytest

from tests.install.environments.quick import QUICK_CASES
from tests.install.environments.room import Case, room


@pytest.mark.long
@pytest.mark.timeout(300)  # several start two devnets one after the other
@pytest.mark.parametrize("case", QUICK_CASES, ids=lambda case: case.name)
def test_devnet_holds_in(case: Case) -> None:
    if (reason := case.why_not()) is not None:
        pytest.skip(reason)
    with room() as place:
        case.run(place)
