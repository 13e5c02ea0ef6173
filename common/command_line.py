"""Shared parts of the command lines: the style of help texts, and shell completion.

Only programs with the click extra import this module.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "show_default": True,
}
_SHELLS: Final = ("bash", "zsh", "fish")
_INSTALL_COMMANDS: Final = """\
    \b
      bash   {program} completion bash > ~/.local/share/bash-completion/completions/{program}
      zsh    {program} completion zsh > "${{fpath[1]}}/_{program}"
      fish   {program} completion fish > ~/.config/fish/completions/{program}.fish
"""


class Program(click.Group):
    """Command group that prints the environment variables and exit codes at the end of its help."""

    def __init__(
        self,
        *arguments: Any,
        environment: Sequence[tuple[str, str]] = (),
        exit_codes: Mapping[int, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.environment = environment
        self.exit_codes = exit_codes or {}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in (
            ("Environment", self.environment),
            ("Exit codes", [(str(int(code)), meaning) for code, meaning in self.exit_codes.items()]),
        ):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def completion_command(program: str) -> click.Command:
    """Return the command that writes the completion script of a shell."""

    def completion(shell: str) -> int:
        from click.shell_completion import get_completion_class  # noqa: PLC0415 - used only here

        script = get_completion_class(shell)
        if script is None:
            raise click.UsageError(f"completion is not available for the shell {shell}")
        root = click.get_current_context().find_root().command
        click.echo(script(root, {}, program, f"_{program.upper()}_COMPLETE").source())
        return 0

    text = f"Write the completion script for a shell.\n\n{_INSTALL_COMMANDS.format(program=program)}"
    return click.command("completion", help=text)(
        click.argument("shell", type=click.Choice(_SHELLS), help="The shell.")(completion)
    )


def discard_output() -> None:
    """Discard standard output after a failed write, so that the interpreter's flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
