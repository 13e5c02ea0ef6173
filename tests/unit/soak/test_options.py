from pathlib import Path

import pytest

from tests.soak.faults.kinds import KINDS
from tests.soak.options import read_options


def test_without_arguments_every_fault_strikes_a_small_market() -> None:
    options = read_options([])
    assert options.faults == tuple(KINDS)
    assert (options.coordinators, options.providers) == (2, 2)


def test_arguments_choose() -> None:
    options = read_options(["--minutes", "0.5", "--seed", "9", "--faults", "reorg,rpc_hang", "--out", "here"])
    assert (options.minutes, options.seed, options.faults) == (0.5, 9, ("reorg", "rpc_hang"))
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


@pytest.mark.parametrize(("hours", "rounds", "each"), [("0.1", 1, 6), ("1", 3, 20), ("1.1", 4, 16.5)])
def test_long_run_has_rounds_of_equal_length(hours: str, rounds: int, each: float) -> None:
    options = read_options(["--hours", hours])
    assert (options.rounds, options.round_minutes) == (rounds, pytest.approx(each))


def test_command_of_a_failed_run_repeats_it() -> None:
    given = ["--hours", "0.5", "--seed", "9", "--faults", "reorg,rpc_hang", "--every", "1", "--pause", "2"]
    options = read_options(given)
    assert read_options(options.again.split()[3:]) == options
