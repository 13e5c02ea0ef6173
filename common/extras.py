"""Report a missing Python package, and the extra that installs it."""

from typing import Final

DISTRIBUTION: Final = "sealed-job-coordinator"
OWN_PACKAGES: Final = ("common", "coordinatord", "svcd", "svc", "devnet")


def missing_extra_message(error: ModuleNotFoundError, program: str, extra: str) -> str:
    """Return one line with the command that installs the package that `program` lacks.

    If a module of this project is missing, raise `error` again, because no extra installs the module.
    """
    name = error.name or ""
    if name.partition(".")[0] in OWN_PACKAGES:
        raise error
    return (
        f"{program}: the Python package {name} must be installed; it comes with the extra '{extra}':"
        f" pip install '{DISTRIBUTION}[{extra}]'"
    )
