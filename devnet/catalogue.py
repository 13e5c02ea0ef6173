"""Terms of the devnet's market: models, windows and fees."""

import json
from typing import Any, Final

import attrs

from common.api.market import ENDPOINT_KEYWORD
from coordinatord.market.terms import MarketTerms, ModelTerms
from devnet.accounts import Cast

TOKEN_DECIMALS: Final = 6

FEE_BPS: Final = 250
GAS_FEE: Final = 2_000  # 0.002 of the payment token
MAX_GAS_FEE: Final = 1_000_000
POINT_PRICE: Final = GAS_FEE // 5  # the gas fee of a settled job alone earns five points
# 1h and 24h, which clients name, and short windows for tests of missed deadlines.
SLA_SECONDS: Final = (60, 300, 600, 3_600, 86_400)


@attrs.frozen
class CatalogueModel:
    model_id: int
    name: str
    endpoint: str
    owned_by: str
    parameters: dict[str, Any]  # JSON Schema of the input


_TEXT: Final = {
    "type": "object",
    "properties": {
        "input": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "instructions": {"type": "string"},
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 8192},
        "min_tokens": {"type": "integer", "minimum": 0, "maximum": 8192},
        "reasoning_max_tokens": {"type": "integer", "minimum": 0, "maximum": 4096},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "seed": {"type": "integer", "minimum": 0},
        "stream": False,
    },
}
_EMBEDDINGS: Final = {
    "type": "object",
    "properties": {
        "input": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "dimensions": {"type": "integer", "minimum": 1, "maximum": 1024},
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    },
}
_IMAGE: Final = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string"},
        "negative_prompt": {"type": "string"},
        "num_images": {"type": "integer", "minimum": 1, "maximum": 4},
        "width": {"type": "integer", "minimum": 256, "maximum": 2048},
        "height": {"type": "integer", "minimum": 256, "maximum": 2048},
        "resolution": {"type": "string", "enum": ["480p", "720p", "1080p"]},
        "aspect_ratio": {"type": "string", "enum": ["21:9", "16:9", "4:3", "1:1", "3:4", "9:16", "auto"]},
        "steps": {"type": "integer", "minimum": 1, "maximum": 50},
        "seed": {"type": "integer", "minimum": 0},
        "reference_images": {"type": "array", "items": {"type": "object"}},
    },
}

MODELS: Final = (
    CatalogueModel(1, "demo/text-small", "/v1/responses", "demo", _TEXT),
    CatalogueModel(2, "demo/embed-small", "/v1/embeddings", "demo", _EMBEDDINGS),
    CatalogueModel(3, "demo/image-small", "/v1/images/generations", "demo", _IMAGE),
)


def terms_of_trade(cast: Cast, token: str, chain_id: int) -> MarketTerms:
    """Return the terms of the market that the admin deploys and owns."""
    return MarketTerms(
        chain_id=chain_id,
        token=token,
        decimals=TOKEN_DECIMALS,
        owner=cast.admin.address,
        treasury=cast.treasury.address,
        fee_bps=FEE_BPS,
        gas_fee=GAS_FEE,
        max_gas_fee=MAX_GAS_FEE,
        point_price=POINT_PRICE,
        slas=SLA_SECONDS,
        relayers=tuple(relayer.address for relayer in cast.with_role("relayer")),
        models=tuple(ModelTerms(m.model_id, m.name, m.owned_by, _published(m)) for m in MODELS),
    )


def _published(model: CatalogueModel) -> str:
    return json.dumps({ENDPOINT_KEYWORD: model.endpoint, **model.parameters}, separators=(",", ":"))
