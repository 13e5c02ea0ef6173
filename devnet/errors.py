"""What keeps the local world from starting or from staying up."""


class Trouble(Exception):
    """One line for the person at the terminal: what is wrong, and what to do about it."""
