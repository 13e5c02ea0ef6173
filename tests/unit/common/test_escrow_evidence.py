import pytest

from common.box import PublicKey
from common.escrow_evidence import mock_measurement, report_data
from tests.vectors.vector_file import cases


@pytest.mark.parametrize("case", cases("escrow_evidence.json"), ids=lambda case: case["name"])
def test_evidence_is_bound_as_its_vector_says(case):
    if case["kind"] == "report_data":
        assert report_data(PublicKey(bytes.fromhex(case["public"]))).hex() == case["report_data"]
    else:
        assert mock_measurement(case["release"]).hex() == case["measurement"]
