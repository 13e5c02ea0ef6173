"""Each migration names the oldest release that works with it, and changes nothing that this release cannot handle."""

import re
from pathlib import Path

import pytest

from common.daemon.process import RELEASE
from coordinatord.storage.database.migration import load_migrations, release_order

PAGE = Path(__file__).parents[4] / "docs" / "operators" / "maintenance.md"
MIGRATIONS = load_migrations()
# By release: its first and last migration, and the oldest release that works with them.
TABLE = [
    (release, int(first), int(last or first), least)
    for release, first, last, least in re.findall(
        r"^\| (\d+\.\d+\.\d+) \| (\d{4})(?: to (\d{4}))? \| (\d+\.\d+\.\d+) \| .* \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
]
BREAKING = re.compile(
    r"\bdrop\s+(table|column|function|view|type|constraint|trigger)|\brename\b|set\s+not\s+null|alter\s+column\s+\w+\s+type"
    r"|add\s+constraint",
    re.IGNORECASE,
)


@pytest.mark.parametrize("number", MIGRATIONS)
def test_page_lists_every_migration_and_its_release(number: int) -> None:
    (release, least) = next((r, least) for r, first, last, least in TABLE if first <= number <= last)
    assert release_order(MIGRATIONS[number].min_release) <= release_order(least)
    assert release_order(least) <= release_order(release) <= release_order(RELEASE)


@pytest.mark.parametrize("number", MIGRATIONS)
def test_a_migration_that_lets_an_older_release_run_only_adds(number: int) -> None:
    migration = MIGRATIONS[number]
    release = next(r for r, first, last, _ in TABLE if first <= number <= last)
    if release_order(migration.min_release) < release_order(release):
        statements = re.sub(r"--.*", "", migration.sql)
        assert not BREAKING.search(statements), migration.name


@pytest.mark.parametrize(
    ("sql", "breaks"),
    [
        ("alter table jobs drop column owner", True),
        ("alter table jobs\n  rename to work", True),
        ("alter table jobs alter column owner set not null", True),
        ("alter table jobs alter column owner type text", True),
        ("alter table jobs add column told text; create index a on b (c); create table d ()", False),
    ],
)
def test_breaking_migrations_are_recognised(sql: str, breaks: bool) -> None:
    assert bool(BREAKING.search(sql)) is breaks


def test_releases_compare_by_their_numbers() -> None:
    assert release_order("0.10.0") > release_order("0.9.9") == release_order("0.9.9rc1") < release_order("1.0.0")
