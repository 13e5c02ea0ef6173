from pathlib import Path

import pytest

from devnet import anvil
from devnet.errors import DevnetError


def test_missing_program_is_answered_with_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DevnetError, match="run `make setup`"):
        anvil.find_anvil(contracts=tmp_path)
