"""The coordinator of a future release: this one with two more migrations.

    python -m tests.support.faults.next_release serve

The migrations do what docs/contributors/migrations.md allows beside processes of this release: new tables, columns and
indexes.
"""

from typing import Final

from coordinatord.storage.database import migration
from coordinatord.storage.database.migration import Migration
from tests.support.coordinator import main

ADDED: Final = {
    900: Migration(
        900,
        "0900_columns.sql",
        "-- least release: 0.1.0\n"
        "create table of_the_future (id bigint primary key, told text);\n"
        "alter table jobs add column told text;\n"
        "alter table relays add column weight integer not null default 7;\n"
        "alter table batch_lines add column told text;\n"
        "alter table sessions add column told text;\n",
    ),
    901: Migration(
        901,
        "0901_index.sql",
        "-- least release: 0.1.0\n"
        "-- outside a transaction\n"
        "drop index concurrently if exists relays_by_weight;\n"
        "create index concurrently relays_by_weight on relays (weight);\n",
    ),
}


def _serve() -> None:
    files = migration.load_migrations() | ADDED
    migration.load_migrations = lambda: files
    main()


if __name__ == "__main__":
    _serve()
