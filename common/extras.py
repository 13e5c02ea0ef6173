"""Start of a program: its modules, loaded without the collector in between, and the extra of the distribution that
brings what is missing, named to whoever starts it without."""

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Final

DISTRIBUTION: Final = "sealed-job-coordinator"
OURS: Final = ("common", "coordinatord", "svcd", "svc", "devnet")
_UNUSED: Final = "httpx._main"  # httpx's own command line: it would bring rich, a tenth of what the client imports
_NOT_SERVED: Final[Mapping[str, tuple[str, ...]]] = {
    # Hypercorn's HTTP/2 and WebSockets, which the coordinator takes no connection to: a twentieth of its start, with
    # their libraries. Each with the names that hypercorn takes from it.
    "h2": ("events",),
    "h2.events": (),
    "hypercorn.protocol.h2": ("H2Protocol",),
    "hypercorn.protocol.ws_stream": ("WSStream",),
}


@contextmanager
def loading() -> Iterator[None]:
    """Imports with the garbage collector at rest. A module's objects all stay, and to look for some that do not takes a
    third of a start. What was loaded is left out of all later searches as well, the one at the exit among them."""
    sys.modules.setdefault(_UNUSED, None)  # type: ignore[arg-type]  # Python's way to say that it is not to be had
    collects, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        with _standing_in():
            yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if collects:
            gc.enable()


@contextmanager
def _standing_in() -> Iterator[None]:
    """Empty modules for `_NOT_SERVED`, inside only: whoever imports one later has the real one."""
    absent = {name: ModuleType(name) for name in _NOT_SERVED if name not in sys.modules}
    for name, module in absent.items():
        vars(module).update((taken, type(taken, (), {})) for taken in _NOT_SERVED[name])
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


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
