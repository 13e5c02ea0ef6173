"""Format unsigned calls for another program, such as a Safe or another multisig: as text, or as a file that a Safe
imports.
"""

import json
import time
from collections.abc import Sequence

from common.scalars import hex_of
from coordinatord.market.contracts import ContractCall


def as_text(calls: Sequence[ContractCall]) -> str:
    return "\n\n".join(
        f"{call.description}\n  to     {call.to}\n  value  0\n  data   {hex_of(call.data)}" for call in calls
    )


def as_safe_json(calls: Sequence[ContractCall], chain_id: int) -> str:
    """Return the calls with their descriptions, in the format of Safe's Transaction Builder."""
    document = {
        "version": "1.0",
        "chainId": str(chain_id),
        "createdAt": int(time.time() * 1000),
        "meta": {"name": calls[0].description, "description": "; ".join(call.description for call in calls)},
        "transactions": [
            {"to": call.to, "value": "0", "data": hex_of(call.data), "description": call.description} for call in calls
        ],
    }
    return json.dumps(document, indent=2)
