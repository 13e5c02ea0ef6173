"""Run the program `devnet`, or name the extra that it needs."""

import sys

from common.extras import missing_extra


def main() -> None:
    try:
        from devnet.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "devnet", "devnet"))
    run()


if __name__ == "__main__":
    main()
