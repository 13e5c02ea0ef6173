"""Commands of the local OpenAI server: running it, and what was spent through it."""

import csv
import io
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import click
import msgspec

from common.extras import missing_extra
from common.refusal import Refused
from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.cli.output import Table
from svc.core.money import in_token
from svc.errors import OrderRefused
from svc.profiles import with_profile
from svc.serve.ledger import Ledger, Spent
from svc.serve.settings import ServeSettings, read_settings, state_folder

_STATE = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of ledger, key and files (default: serve in your configuration folder).  [env: SVC_SERVE_STATE]",
)


@click.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings: keys, budgets, prices, models (default: serve.toml there).  [env: SVC_SERVE_CONFIG]",
)
@_STATE
@click.option("--host", help="Listen here instead of on loopback; needs keys in the settings.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen on this port (8403 unless set; 0: a free one).")
@connected
async def serve(
    connection: Connection, *, config_file: Path | None, state: Path | None, host: str | None, port: int | None
) -> None:
    """Answer as OpenAI's server would, from sealed jobs that your wallet buys.

    Any program with an OpenAI client uses it: give it the address as base_url and the key as api_key. Chat completions,
    responses, embeddings, images, files and batches; streamed or whole. What is asked is sealed here, so that only the
    provider reads it.

    \b
      svc serve
      svc serve --config serve.toml --port 8080
    """
    try:
        from svc.serve import serving  # noqa: PLC0415 - hypercorn comes with an extra that other commands do without
    except ModuleNotFoundError as error:
        raise OrderRefused(missing_extra(error, "svc serve", "client,serve")) from None

    output = connection.output
    environment = with_profile(os.environ)
    try:
        settings = _listening(read_settings(config_file, environment), host, port)
        folder = state_folder(state, environment)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None
    async with connection.client(wallet=True) as client:
        try:
            with serving.listening_socket(settings.server) as listening:
                port = listening.getsockname()[1]
                async with serving.opened(client, settings, folder, port, output.warn) as served:
                    for risk in serving.risks(settings):
                        output.warn(risk)
                    output.say(f"paying from {client.address}; at most {'; '.join(served.trade.budgets.words)}")
                    if served.key_file is not None:
                        output.say(f"api_key: the text in {served.key_file}")
                    output.text(f"base_url: {serving.address(settings.server, port)}")
                    output.flush()
                    await serving.serve_until(served, listening, settings, _told_to_stop)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
    output.say("stopped; what was under way goes on, and is taken up at the next start")


def _listening(settings: ServeSettings, host: str | None, port: int | None) -> ServeSettings:
    server = settings.server
    changed = msgspec.structs.replace(
        server, host=server.host if host is None else host, port=server.port if port is None else port
    )
    settings = msgspec.structs.replace(settings, server=changed)
    settings.check()
    return settings


async def _told_to_stop() -> None:
    if sys.platform == "win32":  # Ctrl-C ends the command there, as any other
        await anyio.sleep_forever()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


# What was spent.

_BY: Final[dict[str, Callable[[Spent], str]]] = {
    "day": lambda spent: datetime.fromtimestamp(spent.at, UTC).date().isoformat(),
    "model": lambda spent: spent.name,
    "key": lambda spent: spent.key,
    "kind": lambda spent: spent.kind,
    "provider": lambda spent: str(spent.provider),
}


@attrs.define
class _Sum:
    jobs: int = 0
    paid: int = 0
    unpaid: int = 0
    under_way: int = 0
    authorised: int = 0

    def add(self, spent: Spent) -> None:
        self.jobs += 1
        if spent.cost is None:
            self.under_way += 1
            self.authorised += spent.amount
        else:
            self.paid += spent.cost
            self.unpaid += spent.cost == 0


@click.command()
@_STATE
@click.option("--by", multiple=True, type=click.Choice(tuple(_BY)), default=("day", "model", "key"), help="Add up by.")
@click.option("--days", type=click.IntRange(1, 3660), default=30, help="Of so many days, today included.")
@click.option("--csv", "as_csv", is_flag=True, help="Every job as a line of CSV, with amounts in base units.")
@click.option("--decimals", type=click.IntRange(0, 36), help="Show amounts in whole tokens of so many decimals.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def spend(  # noqa: PLR0917 - options come as arguments
    state: Path | None, by: tuple[str, ...], days: int, as_csv: bool, decimals: int | None, as_json: bool
) -> Exit:
    """Show what svc serve spent, by day, model and key, from its ledger.

    Amounts are base units of the payment token. A job under way counts with what is authorised for it.

    \b
      svc spend --days 7
      svc spend --by key --json
      svc spend --csv > spent.csv
    """
    from svc.cli.output import Output  # noqa: PLC0415 - with its tables, which completion needs not

    output = Output(as_json=as_json, quiet=False)
    try:
        ledger = Ledger.reading(state_folder(state, with_profile(os.environ)))
    except Refused as refusal:
        output.fail(refusal.message, None, {"message": refusal.message, "code": refusal.code})
        return Exit.USAGE
    try:
        found = anyio.run(ledger.since, time.time() - days * 86_400)
    finally:
        ledger.close()
    if as_csv:
        output.text(_csv(found))
        return Exit.DONE
    sums: dict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    for spent in found:
        sums[tuple(_BY[each](spent) for each in by)].add(spent)
    rows = sorted(sums.items())
    output.table(_table(by, rows, decimals), [_plain(by, names, each) for names, each in rows])
    return Exit.DONE


def _table(by: Sequence[str], rows: list[tuple[tuple[str, ...], _Sum]], decimals: int | None) -> Table:
    def money(amount: int) -> str:
        return str(amount) if decimals is None else in_token(amount, decimals)

    return Table(
        (*by, "jobs", "cost nothing", "under way", "spent", "authorised"),
        [
            (*names, str(each.jobs), str(each.unpaid), str(each.under_way), money(each.paid), money(each.authorised))
            for names, each in rows
        ],
        right=frozenset({"jobs", "cost nothing", "under way", "spent", "authorised"}),
    )


def _plain(by: Sequence[str], names: tuple[str, ...], each: _Sum) -> dict[str, Any]:
    known = {"jobs": each.jobs, "cost_nothing": each.unpaid, "under_way": each.under_way}
    return {**dict(zip(by, names, strict=True)), **known, "spent": str(each.paid), "authorised": str(each.authorised)}


def _csv(found: Sequence[Spent]) -> str:
    """The fields that could be read as a formula begin with a quote, as spreadsheets have it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "key", "kind", "asked_for", "model", "job_id", "provider", "amount", "cost", "state"))
    for spent in found:
        at = datetime.fromtimestamp(spent.at, UTC).isoformat(timespec="seconds")
        names = [_cell(each) for each in (spent.key, spent.kind, spent.name, spent.model)]
        cost = "" if spent.cost is None else spent.cost
        writer.writerow((at, *names, spent.job_id, spent.provider, spent.amount, cost, spent.state))
    return text.getvalue().rstrip("\n")


def _cell(text: str) -> str:
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
