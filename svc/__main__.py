"""Program `svc`. It runs the command line, or names the missing extra."""

import sys

from common.extras import missing_extra


def main() -> int:
    try:
        from svc.cli.main import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "svc", "client"))
    return run()


if __name__ == "__main__":
    sys.exit(main())
