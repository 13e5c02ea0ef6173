"""The program `coordinatord`: the daemon's commands, or the tool `market`, which needs an extra of its own."""

import sys

from common.extras import missing_extra


def main() -> None:
    if sys.argv[1:2] == ["market"]:
        try:
            from coordinatord.market.commands import main as market  # noqa: PLC0415
        except ModuleNotFoundError as error:
            sys.exit(missing_extra(error, "coordinatord market", "market"))
        market(sys.argv[2:])
    else:
        try:
            from coordinatord.run.cli import main as daemon  # noqa: PLC0415
        except ModuleNotFoundError as error:
            sys.exit(missing_extra(error, "coordinatord", "coordinator"))
        daemon()


if __name__ == "__main__":
    main()
