"""Command `svc config`: show and change settings, and where each value comes from."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from common.refusal import Refused
from svc.cli.exit_codes import Exit
from svc.cli.output import Output
from svc.profile_changes import change_setting
from svc.profiles import DEFAULT_PROFILE, KEYS, NAME_VARIABLE, as_variables, profiles_of, profiles_path, with_profile
from svc.settings import DEFAULT_BASE_URL, DEFAULT_MARGIN_SECONDS, PUBLIC_GATEWAY, Settings
from svc.wallets import WALLET_VARIABLES

# Keys, which are only shown as set.
_SECRETS: Final = ("SVC_WALLET_KEY", "SVC_CIPHER_KEY")
_DEFAULTS: Final = {
    "base_url": DEFAULT_BASE_URL,
    "pin_gateway": PUBLIC_GATEWAY,
    "settlement_margin": str(DEFAULT_MARGIN_SECONDS),
    "max_amount": "one token",
    "max_batch_amount": "ten tokens",
}
_PROFILE = click.option("--profile", metavar="NAME", help="Name of the profile.  [env: SVC_PROFILE]")
_KEY = click.argument("key", type=click.Choice(KEYS), metavar="KEY", help="Name of a setting (see svc config show).")


@click.group()
def config() -> None:
    """Show and change the settings in profiles.

    A profile is a table in the file that `svc config path` shows. An option overrides the environment, which overrides
    the profile, which overrides the default.

    \b
      svc config set base_url https://coordinator.example
      svc config set keystore ~/.config/svc/wallet.json
      svc config set base_url http://127.0.0.1:8402 --profile test
      svc config show --profile test
    """


@config.command()
@_PROFILE
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
def show(profile: str | None, as_json: bool) -> Exit:
    """Show every setting and where it comes from. Keys are only shown as set."""
    try:
        environment = _environment(profile)
        chosen = environment.get(NAME_VARIABLE) or DEFAULT_PROFILE
        file_path, profiles = profiles_of(environment)
        effective = with_profile(environment)
        from_profile = as_variables(profiles.get(chosen, {}), f"{file_path}: [profile.{chosen}]")
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    variables = {key: f"SVC_{key.upper()}" for key in KEYS} | {name[4:].lower(): name for name in _SECRETS}
    rows: list[tuple[str, str, str]] = []
    for key, variable in variables.items():
        value, profile_value = effective.get(variable), from_profile.get(variable)
        if value is not None:
            source = f"the environment ({variable})" if variable in environment else f"profile {chosen}"
            if variable in environment and profile_value is not None:
                source += f"; overrides {profile_value} of profile {chosen}"
            rows.append((key, "set" if variable in _SECRETS else value, source))
        elif profile_value is not None:  # the environment sets another kind of wallet
            settings = ", ".join(way for way in WALLET_VARIABLES if environment.get(way))
            rows.append((key, "", f"{profile_value} of profile {chosen} is overridden by the environment ({settings})"))
        else:
            rows.append((key, _DEFAULTS.get(key, ""), "default" if key in _DEFAULTS else "not set"))
    output = Output(as_json=as_json, quiet=False)
    facts = [(key, f"{value}  ({source})" if value else f"({source})") for key, value, source in rows]
    data = {key: {"value": value or None, "source": source} for key, value, source in rows}
    output.facts([("profile", chosen if chosen in profiles else f"{chosen} (does not exist)"), *facts], data)
    return Exit.DONE


@config.command()
def path() -> Exit:
    """Show the path of the profiles file, which may not exist yet."""
    click.echo(_profiles_path(os.environ))
    return Exit.DONE


@config.command()
def profiles() -> Exit:
    """List the names of the profiles."""
    try:
        _, names = profiles_of(os.environ)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    for name in sorted(names):
        click.echo(name)
    return Exit.DONE


@config.command("set")
@_KEY
@click.argument("value", help="The value; separate several nodes or gateways with commas.")
@_PROFILE
def set_(key: str, value: str, profile: str | None) -> Exit:
    """Set a value in a profile, and create the file if it is missing.

    Do not store keys in it: set wallet_key_file, keystore or signer_command instead.
    """
    _require_usable(key, value)
    return _change(key, value, profile)


@config.command()
@_KEY
@_PROFILE
def unset(key: str, profile: str | None) -> Exit:
    """Remove a value from a profile."""
    return _change(key, None, profile)


def _change(key: str, value: str | None, profile: str | None) -> Exit:
    profile_name = profile or os.environ.get(NAME_VARIABLE) or DEFAULT_PROFILE
    profiles_file = _profiles_path(os.environ)
    try:
        change_setting(profiles_file, profile_name, key, value)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    except OSError as error:
        raise click.UsageError(f"{profiles_file}: {error.strerror}") from None
    click.echo(
        f"{key} is {'no longer set' if value is None else 'set'} in profile {profile_name} of {profiles_file}", err=True
    )
    variable = f"SVC_{key.upper()}"
    # Any wallet variable overrides all wallet keys. An empty variable overrides its own key too.
    hidden_by = (
        [way for way in WALLET_VARIABLES if os.environ.get(way)]
        if variable in WALLET_VARIABLES
        else [variable] * (variable in os.environ)
    )
    if value is not None and hidden_by:
        click.echo(
            f"svc: warning: {', '.join(hidden_by)} in the environment overrides it: unset it to use the profile",
            err=True,
        )
    return Exit.DONE


def _require_usable(key: str, value: str) -> None:
    """Reject a value that every command would reject. The wallet is not opened."""
    try:
        Settings.resolve(
            environment={"SVC_CONFIG": "", "SVC_INSECURE_HTTP": "1", f"SVC_{key.upper()}": value}, without_wallet=True
        )
    except Refused as refused:
        raise click.UsageError(f"{key}: {refused.message}") from None


def _environment(profile: str | None) -> Mapping[str, str]:
    return {**os.environ, NAME_VARIABLE: profile} if profile else os.environ


def _profiles_path(environment: Mapping[str, str]) -> Path:
    profiles_file = profiles_path(environment)
    if profiles_file is None:
        raise click.UsageError("no configuration folder: set SVC_CONFIG to a file")
    return profiles_file
