"""The escrow that this coordinator hosts."""

import attrs

from coordinatord.api.escrow.custody import Custody
from coordinatord.api.escrow.handover import HandoverService


@attrs.frozen(slots=True)
class Escrow:
    """Hosted escrow. `handover` is None if the escrow hands over no keys."""

    custody: Custody
    handover: HandoverService | None
