"""`python -m tests.simulation.coordinator`: see `command`."""

from tests.simulation.coordinator import clocks, command

assert clocks.START  # replaces the clocks before any import of coordinatord
if __name__ == "__main__":
    command.main()
