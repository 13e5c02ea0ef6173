"""Programs that tests drive and no package of ours brings: what `make programs` fetched, else the system's."""

import os
import shutil
from pathlib import Path

_FETCHED = Path(__file__).parents[2] / "build" / "programs"


def program(name: str) -> str | None:
    """Its path; None where it is neither fetched nor installed."""
    fetched = _FETCHED / name
    if os.access(fetched, os.X_OK):
        return str(fetched)
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
