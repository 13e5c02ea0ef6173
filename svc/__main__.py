"""Program `svc`. Runs the command line, or names the extra that is not installed."""

import sys

from common.extras import missing_extra_message


def main() -> int:
    try:
        from svc.cli.main import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra_message(error, "svc", "client"))
    return run()


if __name__ == "__main__":
    sys.exit(main())
