"""Exception that the devnet reports to the user."""


class DevnetError(Exception):
    """Error that ends the devnet or prevents its start. The message is one line with the problem and a remedy."""
