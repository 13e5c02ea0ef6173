"""Run `devnet`. If a package is missing, print the extra that installs it."""

import sys

from common.extras import missing_extra_message


def main() -> None:
    try:
        from devnet.cli import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "devnet", "devnet"))
    run()


if __name__ == "__main__":
    main()
