"""Start of a program: its modules, loaded without the collector in between, and the extra of the distribution that
brings what is missing, named to whoever starts it without."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import WRAPPER_ASSIGNMENTS, cache, partial
from types import ModuleType
from typing import Any, Final

DISTRIBUTION: Final = "sealed-job-coordinator"
OURS: Final = ("common", "coordinatord", "svcd", "svc", "devnet")
_UNUSED: Final = "httpx._main"  # httpx's own command line: it would bring rich, a tenth of what the client imports
_NOT_SERVED: Final[Mapping[str, tuple[str, ...]]] = {
    # Hypercorn's HTTP/2 and WebSockets, which the coordinator takes no connection to: a twentieth of its start, with
    # their libraries; and servers of Python's own, by which prometheus-client would serve metrics, which we do
    # ourselves. Each with the names that are taken from it.
    "h2": ("events",),
    "h2.events": (),
    "hypercorn.protocol.h2": ("H2Protocol",),
    "hypercorn.protocol.ws_stream": ("WSStream",),
    "http.server": ("BaseHTTPRequestHandler",),
    "wsgiref.simple_server": ("make_server", "WSGIRequestHandler", "WSGIServer"),
}

# Private members of attrs that its classes are built by here.
_OF_ATTRS: Final = ("_make_repr_script", "_generate_unique_filename", "_linecache_and_compile")
_OF_BUILDER: Final = (
    "add_repr",
    "_add_method_dunders",
    "_attrs",
    "_cls",
    "_cls_dict",
    "_eval_snippets",
    "_repr_added",
    "_script_snippets",
)


@contextmanager
def loading() -> Iterator[None]:
    """Imports with the garbage collector at rest. A module's objects all stay, and to look for some that do not takes a
    third of a start. What was loaded is left out of all later searches as well, the one at the exit among them."""
    sys.modules.setdefault(_UNUSED, None)  # type: ignore[arg-type]  # Python's way to say that it is not to be had
    collects, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        with _standing_in(), _methods_when_called():
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
def _methods_when_called() -> Iterator[None]:
    """Classes of attrs that compile their methods when they are first called. Most of what such a class costs is their
    text and its compilation: two fifths of a start with four hundred classes, few of whose methods are called in it.
    These are private members of attrs: with a release that has others, its classes are built as ever."""
    from attr import _make  # noqa: PLC0415 - a program may load nothing that needs it

    builder: Any = getattr(_make, "_ClassBuilder", None)
    if not all(hasattr(_make, name) for name in _OF_ATTRS) or not all(hasattr(builder, name) for name in _OF_BUILDER):
        yield
        return
    private: Any = _make
    at_once = builder.add_repr, builder._eval_snippets

    def add_repr(self: Any, ns: str | None) -> Any:
        """Not even its text is written: that is the longest of all."""
        fields, filename = self._attrs, private._generate_unique_filename(self._cls, "repr")

        def compiled() -> dict[str, Any]:
            script, names = private._make_repr_script(fields, ns)
            made: dict[str, Any] = private._linecache_and_compile(script, filename, names)
            return made

        self._cls_dict["__repr__"] = self._add_method_dunders(_Late(compiled)["__repr__"])
        self._repr_added = True
        return self

    def eval_snippets(self: Any) -> None:
        filename = private._generate_unique_filename(self._cls, "methods")
        for script, names, attach in self._script_snippets:
            attach(self._cls_dict, _Late(partial(private._linecache_and_compile, script, filename, names)))

    builder.add_repr, builder._eval_snippets = add_repr, eval_snippets
    try:
        yield
    finally:
        builder.add_repr, builder._eval_snippets = at_once


class _Late(dict[str, Any]):
    """Methods by their names, of which none is compiled yet: each puts the one that it stands for in its own place, in
    the class that has it, and calls that."""

    def __init__(self, compiled: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._compiled = cache(compiled)

    def __missing__(self, name: str) -> Any:
        compiled = self._compiled

        def late(*arguments: Any, **named: Any) -> Any:
            method = compiled()[name]
            for each in WRAPPER_ASSIGNMENTS:
                setattr(method, each, getattr(late, each))
            for owner in type(arguments[0]).__mro__:
                if vars(owner).get(name) is late:
                    setattr(owner, name, method)
            return method(*arguments, **named)

        late.__name__, late.__annotations__ = name, {}
        return late


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
