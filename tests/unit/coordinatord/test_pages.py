"""Files of the pages, without external hosts and inline code, and the prices that they draw."""

import re
from importlib import resources

import pytest

from common.web.files import CONTENT_SECURITY_POLICY, StaticFile
from coordinatord.api.pages.files import market_page_files, operators_page_files
from coordinatord.api.pages.pages_sql import PaidRates, RateRange, group_into_buckets
from svcd.operator.page.provider_page import load_page_files

PAGES = {
    **{f"/web/{name}": file for name, file in market_page_files().items()},
    **operators_page_files(),
    **{f"/svcd{path}": file for path, file in load_page_files().items()},
}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_file_obeys_the_content_security_policy(name: str) -> None:
    text = PAGES[name].body.decode()
    # SVG's namespace, and the address of `svc serve` in lines to copy.
    assert set(re.findall(r"https?://[^\s\"'`/<]+", text)) <= {"http://www.w3.org", "http://127.0.0.1:8403"}
    if text.startswith("<!doctype"):
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_every_module_that_is_imported_is_served() -> None:
    for name, file in PAGES.items():
        folder = name.rpartition("/")[0]
        for wanted in re.findall(r"from \"\./([\w.]+)\"", file.body.decode()):
            assert f"{folder}/{wanted}" in PAGES, f"{name} imports {wanted}"
    assert all(f"/{each}" in PAGES for each in re.findall(r"(?:src|href)=\"(web/[\w.]+)\"", _index()))


def test_every_name_that_is_imported_is_exported() -> None:
    for name, file in PAGES.items():
        folder = name.rpartition("/")[0]
        for names, module in re.findall(r"import \{([^}]*)\} from \"\./([\w.]+)\"", file.body.decode()):
            exported = re.findall(
                r"export (?:async )?(?:function|const|class) (\w+)", PAGES[f"{folder}/{module}"].body.decode()
            )
            wanted = {each.strip().partition(" as ")[0] for each in names.split(",") if each.strip()}
            assert wanted <= set(exported), f"{name} imports from {module}"


def _index() -> str:
    return resources.files("coordinatord.api.pages").joinpath("static/index.html").read_text()


def test_etag_follows_from_the_bytes_alone() -> None:
    one, same, other = (StaticFile.of("a.js", body) for body in (b"1", b"1", b"2"))
    assert one.etag == same.etag != other.etag
    assert (b"content-security-policy", CONTENT_SECURITY_POLICY) in one.headers


def test_policy_lets_in_nothing_but_its_own() -> None:
    allowed = dict(part.strip().partition(" ")[::2] for part in CONTENT_SECURITY_POLICY.decode().split(";"))
    assert allowed["default-src"] == "'none'"
    assert {allowed[kind] for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert {allowed[kind] for kind in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}


DAY = 86_400


def test_interval_has_lowest_median_and_highest_price() -> None:
    width, points = group_into_buckets(
        [PaidRates(at, rate, 2 * rate) for at, rate in ((0, 5), (10, 9), (20, 6), (299, 7), (300, 1))]
    )
    assert width == 300
    assert [(point.since, point.jobs) for point in points] == [(0, 4), (300, 1)]
    assert points[0].rate_in == RateRange(5, 6, 9)
    assert points[0].rate_out == RateRange(10, 12, 18)


@pytest.mark.parametrize(
    ("span", "width"),
    [(0, 300), (8 * 3600 - 1, 300), (8 * 3600, 900), (DAY, 3600), (30 * DAY, DAY), (9999 * DAY, 7 * DAY)],
)
def test_stretches_grow_with_the_time_that_they_span(span: int, width: int) -> None:
    assert group_into_buckets([PaidRates(1_800_000_000, 1, 1), PaidRates(1_800_000_000 + span, 1, 1)])[0] == width


def test_rates_beyond_what_floats_hold_stay_whole() -> None:
    rate = 2**128 - 1
    assert group_into_buckets([PaidRates(0, rate, rate)])[1][0].rate_in == RateRange(rate, rate, rate)


def test_no_jobs_are_no_stretches() -> None:
    assert group_into_buckets([])[1] == []
