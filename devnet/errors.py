"""Error of the local world: it cannot start, or cannot stay up."""


class DevnetError(Exception):
    """One line for the person at the terminal: what is wrong, and what to do about it."""
