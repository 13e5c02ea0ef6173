"""Start the command line of `coordinatord`, or name the extra that must be installed."""

import sys

from common.extras import missing_extra_message


def main() -> None:
    try:
        from coordinatord.run.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "coordinatord", "coordinator"))
    run()


if __name__ == "__main__":
    main()
