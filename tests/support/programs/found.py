"""Programs that tests run and no package provides: the version that `make programs` fetched, otherwise the system's."""

import os
import shutil
import sys
from pathlib import Path

_FETCHED = Path(__file__).parents[3] / "build" / "programs"


def program(name: str) -> str | None:
    """Return the path of a program, or None if the program is neither fetched nor installed."""
    fetched = _FETCHED / name
    if os.access(fetched, os.X_OK):
        return str(fetched)
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def node() -> str | None:
    """Return the path of node: the one installed in this environment, otherwise the system's."""
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    return shutil.which("node", path=os.pathsep.join(folders))
