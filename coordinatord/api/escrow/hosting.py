"""Escrow that this coordinator hosts."""

import attrs

from coordinatord.api.escrow.custody import Custody
from coordinatord.api.escrow.handover import HandoverService


@attrs.frozen(slots=True)
class Escrow:
    """An escrow that is hosted here. `handing` is None where keys are not handed over."""

    custody: Custody
    handing: HandoverService | None
