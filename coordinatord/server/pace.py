"""How long a client may take."""

import attrs


@attrs.frozen(slots=True)
class Pace:
    """`idle`: until the head of its next request is here. `grace` and `least_rate`: how soon what was written to it
    must have left; a client that reads slower would hold the answer in our memory, and a shutdown up."""

    idle: float = 30.0
    grace: float = 10.0
    least_rate: int = 32 * 1024  # bytes per second

    def patience(self, unsent: int) -> float:
        """Seconds for so many bytes."""
        return self.grace + unsent / self.least_rate
