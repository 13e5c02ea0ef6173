import pytest

from tests.soak.course import BINS, Course


def test_course_keeps_means_peaks_and_rates_of_each_bin() -> None:
    course = Course()
    for at, value in [(0.2, 1.0), (0.8, 3.0), (3.5, 7.0)]:
        course.add(at, value)
    assert course.means == [(0.5, 2.0), (3.5, 7.0)]
    assert course.peaks == [(0.5, 3.0), (3.5, 7.0)]
    assert course.rates == [(0.5, 2.0), (1.5, 0.0), (2.5, 0.0), (3.5, 1.0)]
    assert course.last == 7.0


def test_days_take_as_many_bins_as_an_hour() -> None:
    course = Course()
    for second in range(0, 3 * 86_400, 60):
        course.add(second, float(second))
    assert len(course.rates) <= BINS
    assert sum(rate * course.seconds for _, rate in course.rates) == pytest.approx(3 * 86_400 / 60)
    assert course.peaks[-1][1] == 3 * 86_400 - 60
