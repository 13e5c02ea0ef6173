import gc
import subprocess
import sys
from collections.abc import Iterator

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
