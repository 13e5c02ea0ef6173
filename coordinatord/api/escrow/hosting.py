"""Escrow hosted by this coordinator."""

import attrs

from coordinatord.api.escrow.custody import Custody
from coordinatord.api.escrow.handover import HandoverService


@attrs.frozen(slots=True)
class Escrow:
    """Hosted escrow. `handing` is None if keys are not handed over."""

    custody: Custody
    handing: HandoverService | None
