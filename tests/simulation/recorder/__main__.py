"""`python -m tests.simulation.recorder`: see `command`."""

from tests.simulation.recorder import command

if __name__ == "__main__":
    command.main()
