"""Command that answers as OpenAI's server would."""

import os
import signal
import sys
from pathlib import Path

import anyio
import click
import msgspec

from common.extras import missing_extra
from common.refusal import Refused
from svc.cli.connection import Connection, connected
from svc.errors import OrderRefused
from svc.profiles import with_profile
from svc.serve.settings import ServeSettings, read_settings, state_folder

STATE = click.option(
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
@STATE
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
            serving.check_tls(settings.server)
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
