"""The escrow that the configuration asks for, put together."""

import attrs

from common.box import PublicKey
from coordinatord.config import Config
from coordinatord.service.escrow.custody import Custody, StaticCustody
from coordinatord.service.escrow.evidence import AnnouncedKey, Evidence, static_evidence
from coordinatord.service.escrow.key_material import EscrowKey
from coordinatord.service.escrow.release import unminted
from coordinatord.service.windows import Clock


@attrs.frozen(slots=True)
class Escrow:
    """An escrow that is hosted here."""

    custody: Custody
    release_ordinal: int
    clock: Clock

    def key(self) -> AnnouncedKey:
        """Raises Retryable while there is no key."""
        public = self.custody.announced()
        if public is None:
            raise unminted()
        return AnnouncedKey(public, self._evidence(public), int(self.clock()))

    def _evidence(self, public: PublicKey) -> Evidence:
        return static_evidence(public, self.release_ordinal)


def host_escrow(config: Config, clock: Clock) -> Escrow | None:
    """None with ESCROW_MODE=off."""
    if config.escrow_mode == "off":
        return None
    keys = tuple(EscrowKey.of_operator(bytes.fromhex(key.reveal())) for key in config.operator_keys)
    return Escrow(StaticCustody(keys), config.release_ordinal, clock)
