"""Extras of the distribution: one for each program, named to whoever starts a program without its packages."""

from typing import Final

DISTRIBUTION: Final = "sealed-job-coordinator"
OURS: Final = ("common", "coordinatord", "svcd", "svc", "devnet")


def missing_extra(error: ModuleNotFoundError, program: str, extra: str) -> str:
    """One line with the command that installs what `program` lacks. A module of our own that is missing is a fault of
    the package, which no extra mends: it is raised."""
    name = error.name or ""
    if name.partition(".")[0] in OURS:
        raise error
    return (
        f"{program}: the Python package {name} must be installed; it comes with the extra '{extra}':"
        f" pip install '{DISTRIBUTION}[{extra}]'"
    )
