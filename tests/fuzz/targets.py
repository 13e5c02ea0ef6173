"""All fuzz targets by name, with their modules. A run imports only its module."""

import importlib
from typing import Final

from tests.fuzz.target import Target

FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "sealed": ("frames", "container", "plaintexts", "handover", "tab-messages", "tab-channel"),
    "texts": ("json", "scalars", "address-book", "json-path", "cid"),
    "chain_data": ("abi", "logs", "rlp", "receipt", "block"),
    "bodies": ("bodies", "answers", "batch-lines", "bundles"),
    "http": ("requests", "forms"),
    "model_servers": ("streams", "loads", "openai-requests"),
}
NAMES: Final = tuple(name for names in FAMILIES.values() for name in names)


def target_of(name: str) -> Target:
    """Raise KeyError for an unknown name."""
    for family, names in FAMILIES.items():
        if name in names:
            targets = importlib.import_module(f"tests.fuzz.{family}").TARGETS
            return {target.name: target for target in targets}[name]
    raise KeyError(name)
