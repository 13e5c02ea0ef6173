import pytest

from common.quotes import CostParts
from common.refusal import Refused
from svc.core.bundles import line_count, read_job_sizes, sizes_metadata, split_cost


@pytest.mark.parametrize("sizes", [[3], [1, 2], [256] * 39 + [16], [n % 7 + 1 for n in range(600)]])
def test_sizes_survive_the_metadata(sizes: list[int]) -> None:
    metadata = sizes_metadata(sizes, 16)
    assert all(len(value) <= 512 for value in metadata.values())
    assert read_job_sizes(metadata) == tuple(sizes)
    assert line_count(metadata, 7) == sum(sizes)


def test_batch_may_have_as_many_jobs_as_lines() -> None:
    assert read_job_sizes({"svc-lines": "1*50000"}) == (1,) * 50_000


def test_batch_without_bundles_has_a_line_for_each_job() -> None:
    assert sizes_metadata([1] * 9, 0) == {}
    assert (read_job_sizes({"run": "7"}), line_count({"run": "7"}, 9)) == (None, 9)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Refused, match="split the file, or use bundle=1"):
        sizes_metadata([n % 7 + 1 for n in range(600)], 2)


@pytest.mark.parametrize("text", ["", "0", "2*0", "-1", "1  2", "3*x", "1e3", "50001", "1*50000 1", "99999*99999", "٣"])
def test_malformed_or_excessive_sizes_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_job_sizes({"svc-lines": text})
    assert line_count({"svc-lines": text}, 4) == 4


def test_cost_of_equal_weights_is_divided_to_the_unit() -> None:
    parts = split_cost(CostParts(10, 1, 2000), [0, 0, 0])
    assert [part.provider for part in parts] == [3, 3, 4]
    assert sum(part.total for part in parts) == 2011
