"""Counts of the house: how many files, how long, how often one thing has two places. `make house` prints them.

Exits with 1 when a count is over its limit. The path of one order is counted by running one, which takes half a minute
(see `tests.house.order_path`); the other counts read the sources.
"""

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from tests.house.order_path import order_path

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("common", "coordinatord", "svcd", "svc", "devnet")
QUESTIONS: Final = ("What", "Who", "Whose", "Where", "Whether", "How")
FRAGMENT_LINES: Final = 60
# The files that the specification's own capabilities may have, and beside them those of each capability added since.
FILES: Final = 290
ADDED: Final[dict[str, int]] = {
    "what operators look at: the check, each node in it, the relayer's role, kinds of pin stores": 8,
    "several nodes: which is asked, one for a decision, what two tell alike": 4,
    "reads by standbys": 1,
    "the relayer's signers, their keystores and settings": 4,
    # common/wire/words, worked_order, errors, files; http/openapi_schemas; book/bodies; files/foreign_lines
    "an API that explains itself": 7,
    "svc conformance: trials of a stranger's coordinator, provider, client and reader": 21,
    "a wheel with an extra for each program": 3,  # common/extras, svc/__main__, devnet/__main__
    "keys that are changed while the market runs": 1,
    # common/keystores; svc's own_files, wallets, signer_command, profile_changes; of its command line answers,
    # destinations, money, exit_codes, commands/account, commands/config; devnet/funding
    "a buyer's day: answers as text and files, wallets of every kind, profiles, balance": 12,
    # guard, servers; operator/: discovery, setup, written_config, register, trial, earnings, chain_history
    "a provider's first hour, and what it earns": 9,
    "removal of whatever has piled up": 1,
    "logs that are alike read together, rows of jobs in binary": 2,  # chain/log_words, indexer/job_rows
    "a provider's own HTTP connections": 1,  # svcd/base/connections
    "jobs that a provider runs before their claim is in a block": 1,  # svcd/stages/ahead
    # common/wire/events; indexer/events_sql; coordinatord/events: hub, listeners, sql, routes; svc/wire/events
    "events of jobs, told as they happen": 7,
    # web/: files, routes, sql; of svc's command line commands/watch
    "pages that people look at": 4,
    # common/wire/why; book/why, why_sql; svc's commands/checks
    "answers to why a job is unclaimed": 4,
    "every check of an order at once": 1,
    "ops of one job in one block": 2,  # relayer: chains, queue_sql
    "gas of ops that ride together, learnt from receipts of several kinds": 1,  # relayer/gas_book
    "how providers' jobs ended lately": 1,
    "jobs offered before their block": 2,  # book/pending, pending_sql
    "what a job rests on before its blocks": 3,  # common/wire/progress; events/progress, progress_sql
    # common: webhooks, wire/webhooks; coordinatord/webhooks: delivery, destinations, endpoints, fanout, routes, sql;
    # svc/webhooks; svc's commands/webhooks
    "webhooks: signed messages of events, posted until they are answered": 10,
    "results before their blocks": 2,  # svc/progress; svc's commands/orders
    "a command line that is read before the daemon behind it is imported": 2,  # commands of coordinatord and of svcd
    # svc/serve, commands/serve, commands/spend
    "svc serve: OpenAI's API for programs of others, its ledger, budgets, files and batches": 28,
    "views that ops ask the node for together": 1,  # coordinatord/operations/shared_views
    "plain requests, answered without hypercorn and h11": 1,  # coordinatord/server/plain
}


@attrs.frozen
class Module:
    path: Path
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)


@attrs.frozen
class Count:
    what: str
    number: float
    least: float
    most: float
    where: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.least <= self.number <= self.most


def modules() -> list[Module]:
    """Every module of the five packages, package markers not counted."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py" and "node_modules" not in path.parts:
                text = path.read_text(encoding="utf-8")
                found.append(Module(path, len(text.splitlines()), ast.parse(text)))
    return found


def counts() -> list[Count]:
    """The counts that reading the sources gives."""
    house = modules()
    lengths = [module.lines for module in house]
    longest = tuple(f"{module.name} {module.lines}" for module in house if module.lines > 400)
    twice = _defined_twice(house)
    questions = tuple(module.name for module in house if _asks(module.tree))
    fragments = _fragments(house)
    return [
        Count("Python files of the five packages", len(house), 1, FILES + sum(ADDED.values())),
        Count("median of their lines", statistics.median(lengths), 100, 160),
        Count("lines of the longest", max(lengths), 1, 400, longest),
        Count("class names defined more than once", len(twice), 0, 10, twice),
        Count("module docstrings that open with a question word", len(questions), 0, 0, questions),
        Count(f"modules of {FRAGMENT_LINES} lines or less that one other imports", len(fragments), 0, 8, fragments),
    ]


def _defined_twice(house: list[Module]) -> tuple[str, ...]:
    classes = Counter(node.name for module in house for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    return tuple(sorted(name for name, times in classes.items() if times > 1))


def _asks(tree: ast.Module) -> bool:
    docstring = ast.get_docstring(tree)
    return docstring is not None and docstring.split()[0].rstrip(",:") in QUESTIONS


def _fragments(house: list[Module]) -> tuple[str, ...]:
    importers = Counter(name for module in house for name in set(_imported(module.tree)))
    return tuple(module.name for module in house if module.lines <= FRAGMENT_LINES and importers[module.name] == 1)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def path_counts() -> list[Count]:
    """The counts that posting an order gives."""
    path = order_path()
    return [
        Count("files that one order passes to its 201", len(path.files), 1, 30, path.files),
        Count("folders of these", len(path.folders), 1, 7, path.folders),
    ]


def main() -> int:
    """Print the table; the exit code."""
    table = [*counts(), *path_counts()]
    for row in table:
        limit = f"≤ {row.most:g}" if row.least <= 1 else f"{row.least:g} to {row.most:g}"
        print(f"{'right' if row.holds else 'OVER':6} {row.number:>6g}  {limit:10}  {row.what}")
        if not row.holds:
            for place in row.where:
                print(f"                           {place}")
    return 0 if all(row.holds for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
