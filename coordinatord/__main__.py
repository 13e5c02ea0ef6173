"""The program `coordinatord`: the daemon's commands, or the tool `market`. Each imports only what it needs: a daemon
of months does without 20 MB of a tool's libraries, and the tool does not wait for the daemon's."""

import sys

from common.extras import missing_extra


def main() -> None:
    try:
        if sys.argv[1:2] == ["market"]:
            from coordinatord.market.commands import main as market  # noqa: PLC0415
        else:
            from coordinatord.run.cli import main as daemon  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(missing_extra(error, "coordinatord", "coordinator"))
    if sys.argv[1:2] == ["market"]:
        market(sys.argv[2:])
    else:
        daemon()


if __name__ == "__main__":
    main()
