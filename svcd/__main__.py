"""Run `svcd`. If a package is missing, print the extra that installs it."""

import sys

from common.extras import missing_extra_message


def main() -> None:
    try:
        from svcd.run.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "svcd", "provider"))
    run()


if __name__ == "__main__":
    main()
