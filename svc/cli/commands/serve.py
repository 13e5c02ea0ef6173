"""Command `svc serve`: run the local server of OpenAI's API, or print a link to its page."""

import os
import signal
import sys
from pathlib import Path

import anyio
import attrs
import click

from common.extras import missing_extra_message
from common.refusal import Refused
from svc.cli.connection import Connection, add_connection_options
from svc.cli.exit_codes import ExitCode
from svc.cli.output import Output
from svc.errors import OrderRefused
from svc.serve.page.access import create_link_to_running_server
from svc.serve.settings import ServeSettings, read_settings, state_folder

STATE_OPTION = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the ledger, key and files (default: ~/.config/svc/serve).",
)


class _RunCommandByDefault(click.Group):
    """Group that runs `svc serve …` as `svc serve run …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunCommandByDefault)
def serve() -> None:
    """Serve OpenAI's API on this machine from sealed jobs.

    The server also has a page to try models in a browser. The server prints a link that opens the page once, within
    five minutes.

    \b
      svc serve                                   runs the server (svc serve run --help lists its options)
      svc serve --config serve.toml --port 8080
      svc serve link                              prints a new link to the page of the running server
    """


@serve.command("run")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file (default: ~/.config/svc/serve.toml).",
)
@STATE_OPTION
@click.option("--host", help="Listen on this address instead of loopback. Requires keys in the settings.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen on this port (default 8403; 0: any free port).")
@add_connection_options
async def run(
    connection: Connection, *, config_file: Path | None, state: Path | None, host: str | None, port: int | None
) -> None:
    """Run the server (same as `svc serve`).

    Works with any OpenAI client: set base_url to the printed address and api_key to the printed key. Supports chat
    completions, responses, embeddings, images, files and batches, with streaming. Prompts are sealed on this machine,
    and only the provider can read them.
    """
    try:
        from svc.serve import serving  # noqa: PLC0415 - hypercorn is in an optional extra
    except ModuleNotFoundError as error:
        raise OrderRefused(missing_extra_message(error, "svc serve", "client,serve")) from None

    output = connection.output
    try:
        settings = _override_address(read_settings(config_file, os.environ), host, port)
        folder = state_folder(state, os.environ)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None
    async with connection.client(wallet=True) as client:
        try:
            serving.check_tls(settings.server)
            with serving.listening_socket(settings.server) as listening:
                port = listening.getsockname()[1]
                async with serving.open_server(client, settings, folder, port, output.warn) as served:
                    for risk in serving.list_risks(settings):
                        output.warn(risk)
                    output.write_note(
                        f"paying from {client.address}; budgets: {'; '.join(served.context.budgets.descriptions)}"
                    )
                    if served.key_file is not None:
                        output.write_note(f"api_key: in the file {served.key_file}")
                    # The link grants access, so it is printed only on a terminal and never into a log.
                    page = (
                        served.create_link() if sys.stderr.isatty() else "run svc serve link, and open the printed link"
                    )
                    output.write_note(f"page: {page}")
                    output.write_text(f"base_url: {serving.base_url(settings.server, port)}")
                    output.flush()
                    await serving.serve_until(served, listening, settings, _wait_for_signal)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
    output.write_note("stopped; running jobs continue, and the next start resumes them")


@serve.command("link")
@STATE_OPTION
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def link(state: Path | None, as_json: bool) -> ExitCode:
    """Print a new link to the page of the running server. The link opens the page once, within five minutes."""
    output = Output(as_json=as_json, quiet=False)
    try:
        url = create_link_to_running_server(state_folder(state, os.environ))
    except Refused as refusal:
        output.show_error(refusal.message, None, {"message": refusal.message, "code": refusal.code})
        return ExitCode.USAGE
    if as_json:
        output.write_json({"link": url})
    else:
        output.write_text(url)
    return ExitCode.DONE


def _override_address(settings: ServeSettings, host: str | None, port: int | None) -> ServeSettings:
    server = settings.server
    changed = attrs.evolve(
        server, host=server.host if host is None else host, port=server.port if port is None else port
    )
    return attrs.evolve(settings, server=changed)


async def _wait_for_signal() -> None:
    if sys.platform == "win32":  # Ctrl-C ends the process on Windows
        await anyio.sleep_forever()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
