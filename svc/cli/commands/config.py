"""Command `svc config`: show settings and where each value comes from, and change them."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from common.refusal import Refused
from common.settings.listing import describe_settings, settings_json, settings_text
from common.text_table import terminal_columns
from svc.cli.exit_codes import ExitCode
from svc.profile_changes import SETTINGS, change_setting
from svc.profiles import (
    DEFAULT_PROFILE,
    PROFILE_VARIABLE,
    find_overrides,
    profiles_path,
    read_profiles,
    select_setting_sources,
)
from svc.settings import Settings
from svc.variables import Variables, variable_name

_PROFILE_OPTION = click.option("--profile", metavar="NAME", help="Name of the profile.  [env: SVC_PROFILE]")
_KEY_ARGUMENT = click.argument(
    "key", type=click.Choice(tuple(SETTINGS)), metavar="KEY", help="Name of a setting (see svc config show)."
)


@click.group()
def config() -> None:
    """Show and change the settings in profiles.

    A profile is a table in the file that `svc config path` shows. An option overrides the environment, which overrides
    the profile, which overrides the default.

    \b
      svc config set base_url https://coordinator.example
      svc config set wallet_key_file ~/.config/svc/wallet.json
      svc config set base_url http://127.0.0.1:8402 --profile test
      svc config show --profile test
    """


@config.command()
@_PROFILE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Write a list of settings as JSON.")
def show(profile: str | None, as_json: bool) -> ExitCode:
    """Show every setting and where it comes from. Keys are not shown."""
    try:
        environment = {**os.environ, PROFILE_VARIABLE: profile} if profile else os.environ
        sources = select_setting_sources(environment)
        _, profiles = read_profiles(environment)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    found = describe_settings(Variables, *sources)
    click.echo(settings_json(found) if as_json else settings_text(found, terminal_columns()))
    name = sources[1].profile
    for key, variable in find_overrides(environment, profiles.get(name, {})).items():
        click.echo(f"svc: warning: {variable} overrides {key} of profile {name}", err=True)
    return ExitCode.DONE


@config.command()
def path() -> ExitCode:
    """Show the path of the profiles file, which may not exist yet."""
    click.echo(_profiles_path(os.environ))
    return ExitCode.DONE


@config.command()
def profiles() -> ExitCode:
    """List the names of the profiles."""
    try:
        _, names = read_profiles(os.environ)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    for name in sorted(names):
        click.echo(name)
    return ExitCode.DONE


@config.command("set")
@_KEY_ARGUMENT
@click.argument("value", help="The value; separate several nodes or gateways with commas.")
@_PROFILE_OPTION
def set_(key: str, value: str, profile: str | None) -> ExitCode:
    """Set a value in a profile. Creates the file if it is missing.

    Do not store keys in the file: set wallet_key_file or signer_command instead.
    """
    _require_valid_value(key, value)
    return _change_profile(key, value, profile)


@config.command()
@_KEY_ARGUMENT
@_PROFILE_OPTION
def unset(key: str, profile: str | None) -> ExitCode:
    """Remove a value from a profile."""
    return _change_profile(key, None, profile)


def _change_profile(key: str, value: str | None, profile: str | None) -> ExitCode:
    profile_name = profile or os.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE
    profiles_file = _profiles_path(os.environ)
    try:
        change_setting(profiles_file, profile_name, key, value)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    except OSError as error:
        raise click.UsageError(f"cannot change {profiles_file}: {error.strerror}") from None
    click.echo(
        f"{key} is {'no longer set' if value is None else 'set'} in profile {profile_name} of {profiles_file}", err=True
    )
    hidden_by = find_overrides(os.environ, {key: value}).get(key)
    if value is not None and hidden_by:
        click.echo(
            f"svc: warning: {hidden_by} in the environment overrides this value: unset {hidden_by} to use the profile",
            err=True,
        )
    return ExitCode.DONE


def _require_valid_value(key: str, value: str) -> None:
    """Reject a value that every other command would reject. The wallet is not opened."""
    environment = {"SVC_CONFIG": "", "SVC_INSECURE_HTTP": "1", variable_name(key): value}
    try:
        Settings.resolve(environment=environment, without_wallet=True)
    except Refused as refused:
        raise click.UsageError(refused.message) from None


def _profiles_path(environment: Mapping[str, str]) -> Path:
    profiles_file = profiles_path(environment)
    if profiles_file is None:
        raise click.UsageError("no configuration folder: set SVC_CONFIG to a file")
    return profiles_file
