import gc
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from common.extras import loading


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_collector_rests_while_modules_are_loaded_and_leaves_them_out_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    with loading():
        with loading():
            pass
        assert not gc.isenabled()
        monkeypatch.setitem(sys.modules, "tests.loaded_just_now", sys)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000


def test_httpx_is_loaded_without_its_command_line_and_what_that_brings() -> None:
    code = (
        "import sys; from common.extras import loading\n"
        "with loading(): import httpx\n"
        "sys.exit(sorted({'rich', 'click', 'pygments'} & set(sys.modules)) or httpx.__name__ != 'httpx')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_class_of_attrs_compiles_a_method_when_that_is_first_called() -> None:
    def described() -> type:
        @attrs.frozen
        class Described:
            name: str
            secret: str = attrs.field(repr=False)
            size: int = attrs.field(repr=hex, default=10)

        return Described

    with loading():
        late = described()
    once, same = described(), type("Same", (late,), {})
    methods = ("__init__", "__repr__", "__eq__", "__hash__")
    assert not any(_compiled(late, name) for name in methods)
    assert repr(same("a", "b")) == "Same(name='a', size=0xa)"  # of a class that has none of its own
    assert [name for name in methods if _compiled(late, name)] == ["__init__", "__repr__"]
    assert repr(late("a", "b")) == repr(once("a", "b")) == "Described(name='a', size=0xa)"
    assert (late("a", "b") == late("a", "b"), late("a", "b") == late("a", "c")) == (True, False)
    assert len({late("a", "b"), late("a", "b"), late("a", "c")}) == 2
    assert all(_compiled(late, name) for name in methods)
    assert not vars(same).keys() & set(methods)
    for name in methods:
        ours, theirs = vars(late)[name], vars(once)[name]
        assert [getattr(ours, each) for each in ABOUT] == [getattr(theirs, each) for each in ABOUT]


ABOUT = ("__module__", "__qualname__", "__doc__", "__annotations__")


def _compiled(kind: type, name: str) -> bool:
    return bool(vars(kind)[name].__code__.co_filename.startswith("<attrs generated"))


def test_method_that_another_class_took_over_before_it_was_called_is_the_same_there() -> None:
    with loading():

        @attrs.frozen
        class Size:
            of: int

        class Other:
            of = 7
            __repr__ = Size.__repr__
            shown = Size.__repr__

    assert (repr(Size(1)), repr(Other())) == (repr(Size(1)), Other().shown())
    assert repr(Other()).endswith("Other(of=7)")


@pytest.mark.parametrize("missing", ["_make_repr_script", "_ClassBuilder._add_method_dunders"])
def test_class_of_another_attrs_is_built_as_ever(missing: str) -> None:
    code = (
        "import attr._make as _make; from common.extras import loading\n"
        f"put_by = _make.{missing}; del _make.{missing}\n"
        f"with loading(): _make.{missing} = put_by; import attrs; one = attrs.make_class('One', ['size'])\n"
        "print(vars(one)['__repr__'].__code__.co_filename.split()[:2], one(1))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("['<attrs', 'generated'] One(size=1)\n", "")


def test_nothing_is_left_out_where_nothing_was_loaded() -> None:
    gc.unfreeze()
    with loading():
        pass
    assert gc.get_freeze_count() == 0


def test_collector_works_again_after_a_module_that_cannot_be_loaded() -> None:
    with pytest.raises(ModuleNotFoundError), loading():
        raise ModuleNotFoundError
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
