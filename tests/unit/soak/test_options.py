from pathlib import Path

import pytest

from tests.soak.faults.kinds import KINDS
from tests.soak.options import read_options


def test_without_arguments_every_fault_strikes_a_small_market() -> None:
    options = read_options([])
    assert options.faults == tuple(KINDS)
    assert (options.coordinators, options.providers) == (2, 2)


def test_arguments_choose() -> None:
    options = read_options(
        ["--minutes", "0.5", "--seed", "9", "--faults", "reorg,rpc_hang", "--out", "here", "--jobs", "3"]
    )
    assert (options.minutes, options.seed, options.faults, options.jobs) == (0.5, 9, ("reorg", "rpc_hang"), 3)
    assert options.out == Path("here")


def test_quiet_run_has_no_faults() -> None:
    assert read_options(["--faults", "none"]).faults == ()


@pytest.mark.parametrize(
    "arguments", [["--faults", "earthquake"], ["--minutes", "0"], ["--coordinators", "0"], ["--providers", "9"]]
)
def test_impossible_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_random_seed_is_one_that_can_be_given_back() -> None:
    seeds = {read_options(["--seed", "random"]).seed for _ in range(8)}
    assert len(seeds) == 8
    assert {read_options(["--seed", str(seed)]).seed for seed in seeds} == seeds
