"""Command `svc completion`: write the completion script of a shell."""

import click

from svc.cli.exit_codes import Exit


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), help="The shell.")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> Exit:
    """Write the completion script for a shell.

    \b
      bash   svc completion bash > ~/.local/share/bash-completion/completions/svc
      zsh    svc completion zsh > "${fpath[1]}/_svc"
      fish   svc completion fish > ~/.config/fish/completions/svc.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - used only here

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(script(ctx.find_root().command, {}, "svc", "_SVC_COMPLETE").source())
    return Exit.DONE
