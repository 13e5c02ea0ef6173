"""Error of the devnet."""


class DevnetError(Exception):
    """The devnet cannot start or continue. The message is one line with the problem and a remedy."""
