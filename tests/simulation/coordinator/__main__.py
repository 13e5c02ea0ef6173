"""`python -m tests.simulation.coordinator`: see `command`."""

from tests.simulation.coordinator import clocks, command

assert clocks.START  # taken over before anything of coordinatord is read
if __name__ == "__main__":
    command.main()
