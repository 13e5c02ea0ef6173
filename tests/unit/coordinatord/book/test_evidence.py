import msgspec
import pytest

from coordinatord.api.book import bodies as routes
from coordinatord.api.book.registries_sql import ProviderRow
from coordinatord.api.book.reliability_sql import ReliabilityRow


def provider_with(evidence: bytes) -> ProviderRow:
    return ProviderRow(
        provider_id=1,
        operator=bytes(20),
        box_key=None,
        evidence=evidence,
        listed=True,
        reputation=500,
        allow_all_models=True,
        allowed_models=[],
        capacity=1,
        active_jobs=0,
        requested=1,
        reliability=ReliabilityRow(0, 0, 0, None, None),
    )


@pytest.mark.parametrize(
    ("published", "shown"),
    [
        (b"", None),
        (b"null", None),
        (b'{"kind":"test"}', {"kind": "test"}),
        (b"no JSON", "0x6e6f204a534f4e"),
        (b'{"a":1,"a":2}', "0x7b2261223a312c2261223a327d"),
    ],
    ids=["nothing", "null", "JSON", "bytes", "JSON of two meanings"],
)
def test_evidence_is_shown_as_its_json_or_its_bytes(published: bytes, shown: object) -> None:
    assert routes.provider_shape(provider_with(published)).evidence == shown


def test_announced_bundles_are_shown() -> None:
    announced = msgspec.to_builtins(routes.provider_shape(provider_with(b'{"svc_bundle":{"v":1,"items":200}}')))
    assert announced["largest_bundle"] == 200
    assert "largest_bundle" not in msgspec.to_builtins(routes.provider_shape(provider_with(b'{"kind":"test"}')))
