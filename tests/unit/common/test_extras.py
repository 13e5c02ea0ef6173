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


def test_class_of_attrs_writes_its_repr_when_that_is_asked_for() -> None:
    def described() -> type:
        @attrs.frozen
        class Described:
            name: str
            secret: str = attrs.field(repr=False)
            size: int = attrs.field(repr=hex)

        return Described

    with loading():
        late = described()
    once, same = described(), type("Same", (late,), {})
    assert vars(late)["__repr__"].__code__.co_freevars  # attrs' own looks nothing up outside
    assert not vars(once)["__repr__"].__code__.co_freevars
    assert repr(same("a", "b", 10)) == "Same(name='a', size=0xa)"  # of a class that has none of its own
    assert repr(late("a", "b", 10)) == repr(once("a", "b", 10)) == "Described(name='a', size=0xa)"
    assert not vars(late)["__repr__"].__code__.co_freevars
    assert "__repr__" not in vars(same)


@pytest.mark.parametrize("missing", ["_add_repr", "_ClassBuilder._add_method_dunders"])
def test_class_of_another_attrs_is_built_as_ever(missing: str) -> None:
    code = (
        "import attr._make as _make; from common.extras import loading\n"
        f"put_by = _make.{missing}; del _make.{missing}\n"
        f"with loading(): _make.{missing} = put_by; import attrs; one = attrs.make_class('One', ['size'])\n"
        "print(one(1), bool(vars(one)['__repr__'].__code__.co_freevars))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("One(size=1) False\n", "")


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
