import pytest

from coordinatord.api.book import bodies as routes
from coordinatord.api.book.registries_sql import ProviderRow
from coordinatord.api.book.reliability_sql import ReliabilityRow


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
    row = ProviderRow(
        provider_id=1,
        operator=bytes(20),
        box_key=None,
        evidence=published,
        listed=True,
        reputation=500,
        allow_all_models=True,
        allowed_models=[],
        capacity=1,
        active_jobs=0,
        requested=1,
        reliability=ReliabilityRow(0, 0, 0, None),
    )
    assert routes.provider(row).evidence == shown
