"""`python -m tests.recorder`: see `command`."""

from tests.recorder import command

if __name__ == "__main__":
    command.main()
