"""Record a seed unchanged, and with one changed behaviour at a time.

python -m tests.simulation.recorder.planted FOLDER
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.recorder.seeds import record_seed  # isort: skip # before coordinatord is imported

import asyncpg

from coordinatord.api.sessions import routes
from tests.simulation.coordinator.ground import Ground, ground
from tests.simulation.recorder.entries import write

SEED: Final = 3  # five orders without svcd, because its clients would follow the event streams
_BEFORE_INSERT: Final = """
create function planted() returns trigger language plpgsql as $$ begin {body} end $$;
create trigger planted before insert on {table} for each row execute function planted();
"""
CHANGES: Final = {
    "event": _BEFORE_INSERT.format(table="events", body="if new.kind = 1 then return null; end if; return new;"),
    "column": _BEFORE_INSERT.format(table="owner_sums", body="new.completed := new.completed + 1; return new;"),
}


def main() -> None:
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work, ground(Path(work)) as standing:
        write(folder / "plain" / "seed.jsonl", record_seed(SEED, standing))
        with patch.object(routes, "SessionShape", _other_session(routes.SessionShape)):
            write(folder / "answer" / "seed.jsonl", record_seed(SEED, standing))
        for name, change in CHANGES.items():
            with patch.object(Ground, "renewed", _changed(Ground.renewed, change)):
                write(folder / name / "seed.jsonl", record_seed(SEED, standing))


def _other_session(real: Any) -> Any:
    return lambda token, expires_at, provider_id: real(token, expires_at, 7)


def _changed(renewed: Any, change: str) -> Any:
    async def execute(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(change)
        await connection.close()

    def changed(standing: Ground) -> str:
        url: str = renewed(standing)
        standing.portal.call(execute, url)
        return url

    return changed


if __name__ == "__main__":
    main()
