"""Models, windows and fees of the devnet's market."""

import json
from typing import Any, Final

import attrs

from common.api.market import ENDPOINT_KEYWORD
from coordinatord.market.terms import MarketTerms, ModelTerms
from devnet.accounts import DevWallets

TOKEN_DECIMALS: Final = 6

FEE_BPS: Final = 250
GAS_FEE: Final = 2_000  # 0.002 of the payment token
MAX_GAS_FEE: Final = 1_000_000
POINT_PRICE: Final = GAS_FEE // 5  # fees per reputation point: the gas fee of one settled job earns five points

# 1h and 24h, the windows of batches, and short windows for tests of missed deadlines.
SLA_WINDOWS_S: Final = (60, 300, 600, 3_600, 86_400)


@attrs.frozen
class CatalogueModel:
    """A model that the market offers."""

    model_id: int
    name: str
    endpoint: str
    owned_by: str
    parameters: dict[str, Any]  # JSON Schema of the input


_TEXT_PARAMETERS: Final = {
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
_EMBEDDING_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "input": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "dimensions": {"type": "integer", "minimum": 1, "maximum": 1024},
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    },
}
_IMAGE_PARAMETERS: Final = {
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
    CatalogueModel(1, "demo/text-small", "/v1/responses", "demo", _TEXT_PARAMETERS),
    CatalogueModel(2, "demo/embed-small", "/v1/embeddings", "demo", _EMBEDDING_PARAMETERS),
    CatalogueModel(3, "demo/image-small", "/v1/images/generations", "demo", _IMAGE_PARAMETERS),
)


def market_terms(wallets: DevWallets, token: str, chain_id: int) -> MarketTerms:
    """Return the terms with which the admin deploys the market."""
    return MarketTerms(
        chain_id=chain_id,
        token=token,
        decimals=TOKEN_DECIMALS,
        owner=wallets.admin.address,
        treasury=wallets.treasury.address,
        fee_bps=FEE_BPS,
        gas_fee=GAS_FEE,
        max_gas_fee=MAX_GAS_FEE,
        point_price=POINT_PRICE,
        slas=SLA_WINDOWS_S,
        relayers=tuple(relayer.address for relayer in wallets.with_role("relayer")),
        models=tuple(ModelTerms(m.model_id, m.name, m.owned_by, _published_json(m)) for m in MODELS),
    )


def _published_json(model: CatalogueModel) -> str:
    return json.dumps({ENDPOINT_KEYWORD: model.endpoint, **model.parameters}, separators=(",", ":"))
