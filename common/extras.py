"""Error message for a missing package: the extra that installs the package."""

from typing import Final

DISTRIBUTION: Final = "sealed-job-coordinator"
OWN_PACKAGES: Final = ("common", "coordinatord", "svcd", "svc", "devnet")


def missing_extra(error: ModuleNotFoundError, program: str, extra: str) -> str:
    """Return one line with the command that installs the package that `program` lacks.

    No extra repairs a missing module of this project, so its error is raised again.
    """
    name = error.name or ""
    if name.partition(".")[0] in OWN_PACKAGES:
        raise error
    return (
        f"{program}: the Python package {name} must be installed; it comes with the extra '{extra}':"
        f" pip install '{DISTRIBUTION}[{extra}]'"
    )
