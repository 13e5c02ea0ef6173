"""The program `coordinatord`: its command line, or the extra that it needs."""

import sys

from common.extras import missing_extra


def main() -> None:
    try:
        from coordinatord.run.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "coordinatord", "coordinator"))
    run()


if __name__ == "__main__":
    main()
