"""Start of a program: its modules, loaded without the collector in between, and the extra of the distribution that
brings what is missing, named to whoever starts it without."""

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

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

_OF_BUILDER: Final = ("add_repr", "_cls_dict", "_add_method_dunders", "_repr_added")


@contextmanager
def loading() -> Iterator[None]:
    """Imports with the garbage collector at rest. A module's objects all stay, and to look for some that do not takes a
    third of a start. What was loaded is left out of all later searches as well, the one at the exit among them."""
    sys.modules.setdefault(_UNUSED, None)  # type: ignore[arg-type]  # Python's way to say that it is not to be had
    collects, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        with _standing_in(), _reprs_when_asked():
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


@contextmanager
def _reprs_when_asked() -> Iterator[None]:
    """Classes of attrs that write their `__repr__` when it is first asked for. Most of what such a class costs is the
    text of that method and its compilation: two fifths of a start with four hundred classes, of which few are asked.
    These are private members of attrs: with a release that has others, its classes are built as ever."""
    from attr import _make  # noqa: PLC0415 - a program may load nothing that needs it

    builder: Any = getattr(_make, "_ClassBuilder", None)
    write: Any = getattr(_make, "_add_repr", None)
    if write is None or not all(hasattr(builder, name) for name in _OF_BUILDER):
        yield
        return
    at_once = builder.add_repr

    def when_asked(self: Any, ns: str | None) -> Any:
        def __repr__(one: object) -> str:  # noqa: N807 - a method of the class that is built
            owner = next(each for each in type(one).__mro__ if vars(each).get("__repr__") is __repr__)
            return str(write(owner, ns).__repr__(one))

        self._cls_dict["__repr__"] = self._add_method_dunders(__repr__)
        self._repr_added = True
        return self

    builder.add_repr = when_asked
    try:
        yield
    finally:
        builder.add_repr = at_once


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
