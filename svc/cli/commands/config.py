"""`svc config`: the settings that commands use, where each comes from, and the file of profiles."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from common.refusal import Refused
from svc.cli.exit_codes import Exit
from svc.cli.output import Output
from svc.profile_changes import change_setting
from svc.profiles import DEFAULT, KEYS, NAME_VARIABLE, as_variables, place_of, profiles_of, with_profile
from svc.settings import DEFAULT_BASE_URL, DEFAULT_MARGIN, PUBLIC_GATEWAY, Settings
from svc.wallets import WAYS

# Shown as set, and never themselves: they are keys.
_SECRETS: Final = ("SVC_WALLET_KEY", "SVC_CIPHER_KEY")
_DEFAULTS: Final = {
    "base_url": DEFAULT_BASE_URL,
    "pin_gateway": PUBLIC_GATEWAY,
    "settlement_margin": str(DEFAULT_MARGIN),
    "max_amount": "one token",
    "max_batch_amount": "ten tokens",
}
_PROFILE = click.option("--profile", metavar="NAME", help="Of this profile.  [env: SVC_PROFILE]")
_KEY = click.argument("key", type=click.Choice(KEYS), metavar="KEY", help="A setting's name: svc config show.")


@click.group()
def config() -> None:
    """Show and change the settings that are kept in profiles.

    A profile is a table of the file that `svc config path` names. An option wins over the environment, that over the
    profile, that over the default.

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
    """Show every setting with where it comes from; of keys only that they are set."""
    try:
        environment = _environment(profile)
        chosen = environment.get(NAME_VARIABLE) or DEFAULT
        where, profiles = profiles_of(environment)
        effective = with_profile(environment)
        kept = as_variables(profiles.get(chosen, {}), f"{where}: [profile.{chosen}]")
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    variables = {key: f"SVC_{key.upper()}" for key in KEYS} | {name[4:].lower(): name for name in _SECRETS}
    rows: list[tuple[str, str, str]] = []
    for key, variable in variables.items():
        value, in_profile = effective.get(variable), kept.get(variable)
        if value is not None:
            source = f"the environment ({variable})" if variable in environment else f"profile {chosen}"
            if variable in environment and in_profile is not None:
                source += f"; it hides {in_profile} of profile {chosen}"
            rows.append((key, "set" if variable in _SECRETS else value, source))
        elif in_profile is not None:  # another way to name a wallet is set in the environment
            ways = ", ".join(way for way in WAYS if environment.get(way))
            rows.append((key, "", f"{in_profile} of profile {chosen} is hidden by the environment ({ways})"))
        else:
            rows.append((key, _DEFAULTS.get(key, ""), "default" if key in _DEFAULTS else "not set"))
    output = Output(as_json=as_json, quiet=False)
    facts = [(key, f"{value}  ({source})" if value else f"({source})") for key, value, source in rows]
    data = {key: {"value": value or None, "source": source} for key, value, source in rows}
    output.facts([("profile", chosen if chosen in profiles else f"{chosen} (there is none)"), *facts], data)
    return Exit.DONE


@config.command()
def path() -> Exit:
    """Write the place of the file of profiles, which need not be there yet."""
    click.echo(_place(os.environ))
    return Exit.DONE


@config.command()
def profiles() -> Exit:
    """List the names of the profiles."""
    try:
        _, there = profiles_of(os.environ)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    for name in sorted(there):
        click.echo(name)
    return Exit.DONE


@config.command("set")
@_KEY
@click.argument("value", help="What it is set to; nodes and gateways comma-separated.")
@_PROFILE
def set_(key: str, value: str, profile: str | None) -> Exit:
    """Set a value of a profile; the file is made where there is none.

    Keys do not belong into it: wallet_key_file, keystore or signer_command say where the wallet is.
    """
    _require_usable(key, value)
    return _changed(key, value, profile)


@config.command()
@_KEY
@_PROFILE
def unset(key: str, profile: str | None) -> Exit:
    """Take a value out of a profile."""
    return _changed(key, None, profile)


def _changed(key: str, value: str | None, profile: str | None) -> Exit:
    name = profile or os.environ.get(NAME_VARIABLE) or DEFAULT
    place = _place(os.environ)
    try:
        change_setting(place, name, key, value)
    except Refused as refused:
        raise click.UsageError(refused.message) from None
    except OSError as error:
        raise click.UsageError(f"{place}: {error.strerror}") from None
    click.echo(f"{key} is {'no longer set' if value is None else 'set'} in profile {name} of {place}", err=True)
    variable = f"SVC_{key.upper()}"
    # Any way to name a wallet hides all others. A variable that is set to nothing hides its own key, too.
    hiding = [way for way in WAYS if os.environ.get(way)] if variable in WAYS else [variable] * (variable in os.environ)
    if value is not None and hiding:
        click.echo(f"svc: warning: {', '.join(hiding)} in the environment hides it: unset that to use it", err=True)
    return Exit.DONE


def _require_usable(key: str, value: str) -> None:
    """A value that every command would refuse is refused now. A wallet is not opened for that."""
    try:
        Settings.resolve(
            environment={"SVC_CONFIG": "", "SVC_INSECURE_HTTP": "1", f"SVC_{key.upper()}": value}, without_wallet=True
        )
    except Refused as refused:
        raise click.UsageError(f"{key}: {refused.message}") from None


def _environment(profile: str | None) -> Mapping[str, str]:
    return {**os.environ, NAME_VARIABLE: profile} if profile else os.environ


def _place(environment: Mapping[str, str]) -> Path:
    place = place_of(environment)
    if place is None:
        raise click.UsageError("there is no folder for settings here: SVC_CONFIG must name a file")
    return place
