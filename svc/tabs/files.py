"""Files of open tabs, with which another process can continue or close a tab.

    <folder>/svc/tabs/JOB.json        keys, order and voucher state; removed once the tab is settled and checked
    <folder>/svc/tabs/JOB.lock        locked by the process that uses the tab
    <folder>/svc/tabs/faulty.json     providers that broke the rules of tabs, with the reason

Files have mode 0600. The keys of a tab can only sign its vouchers (signed allowances), up to the tab's cap. Without a
home folder, tabs are only in memory.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from common.box import PublicKey, SecretKey
from common.json_object import MAX_CODE_LENGTH, ObjectReader
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from common.strict_json import parse
from common.tab.terms import TabDelegation, TabTerms, delegation_json, read_delegation
from common.tab.transcript import TabOrder
from svc.protected_files import LockedFile, ProtectedFile, configuration_folder

_MAX_FILE_BYTES: Final = 1 << 20
_MAX_INTEGER: Final = 2**53 - 1
_MAX_TEXT_LENGTH: Final = 2048
_FAULTY_FILE_STEM: Final = "faulty"  # without .json
_FILE_READER: Final = ObjectReader("the file of a tab", "malformed_file")
_COUNT_FIELDS: Final = (
    *("chain_id", "provider", "window_s", "units_out", "rate_in", "rate_out", "amount", "fee_bps", "gas_fee"),
    *("posted_at", "expires_at"),
)
_FIELDS: Final = frozenset(
    {"v", "job_id", "url", "owner", "job_registry", "box_key", "model", *_COUNT_FIELDS}
    | {"channel_key", "key", "voucher_key", "delegated_until", "delegation", "state"}
)


@attrs.frozen(slots=True, kw_only=True)
class TabFile:
    """Order and keys of a tab. `url` is the coordinator's address. `voucher_wallet` signs the vouchers."""

    job_id: bytes
    url: str
    owner: bytes
    chain_id: int
    job_registry: bytes
    provider: int
    box_key: PublicKey
    model: str
    window_s: int
    units_out: int
    rate_in: int
    rate_out: int
    amount: int
    fee_terms: FeeTerms
    posted_at: int
    expires_at: int
    channel_key: SecretKey = attrs.field(repr=False)
    voucher_wallet: Wallet = attrs.field(repr=False)
    delegation: TabDelegation = attrs.field(repr=False)

    @property
    def id(self) -> str:
        return hex_of(self.job_id)

    @property
    def terms(self) -> TabTerms:
        return TabTerms(self.channel_key.public, self.delegation)

    def order(self, completion_tok: int) -> TabOrder:
        return TabOrder(self.job_id, self.owner, self.provider, self.rate_in, self.rate_out, completion_tok)

    def to_json(self, voucher_secret: bytes, state: Mapping[str, object]) -> dict[str, object]:
        return {
            "v": 1,
            "job_id": self.id,
            "url": self.url,
            "owner": hex_of(self.owner),
            "job_registry": hex_of(self.job_registry),
            "box_key": hex_of(self.box_key.raw),
            "model": self.model,
            "chain_id": self.chain_id,
            "provider": self.provider,
            "window_s": self.window_s,
            "units_out": self.units_out,
            "rate_in": str(self.rate_in),
            "rate_out": str(self.rate_out),
            "amount": str(self.amount),
            "fee_bps": self.fee_terms.fee_bps,
            "gas_fee": str(self.fee_terms.gas_fee),
            "posted_at": self.posted_at,
            "expires_at": self.expires_at,
            "channel_key": hex_of(self.channel_key.raw),
            "key": hex_of(voucher_secret),
            **delegation_json(self.delegation),
            "state": dict(state),
        }


@attrs.define(eq=False)
class StoredTab:
    """Tab that this process has locked. `secret` is the private key that signs the tab's vouchers."""

    file: TabFile
    state: dict[str, object]
    secret: bytes = attrs.field(repr=False)
    _locked_file: LockedFile | None = None

    @property
    def is_on_disk(self) -> bool:
        return self._locked_file is not None

    def write(self, *, sync: bool = False) -> None:
        if self._locked_file is not None:
            self._locked_file.write(json.dumps(self.file.to_json(self.secret, self.state)), sync=sync)

    def remove(self) -> None:
        if self._locked_file is not None:
            self._locked_file.remove()


@attrs.frozen
class TabFiles:
    """Stores the tabs of all of this user's wallets, at all coordinators. Without a folder, no file is written."""

    folder: Path | None
    _faulty_in_memory: dict[str, str] = attrs.field(factory=dict)

    @contextmanager
    def create(self, file: TabFile, secret: bytes) -> Iterator[StoredTab]:
        """Store and lock a new tab. Call this before the tab's order is posted."""
        if self.folder is None:
            yield StoredTab(file, {}, secret)
            return
        with self._protected_file(file.id).lock_for_change(wait=False) as change:
            stored = StoredTab(file, {}, secret, change)
            stored.write(sync=True)
            yield stored

    @contextmanager
    def lock(self, job_id: str) -> Iterator[StoredTab]:
        """Lock and read a stored tab. Raises Refused: `unknown_tab`, or `in_use` if another process has the lock."""
        if self.folder is None or not self._protected_file(job_id).path.exists():
            raise Refused(f"this machine has no open tab {job_id}: see svc tab list", "job_id", "unknown_tab")
        with self._protected_file(job_id).lock_for_change(wait=False) as change:
            raw = change.read()
            if raw is None:
                raise Refused(f"this machine has no open tab {job_id}: see svc tab list", "job_id", "unknown_tab")
            file, secret, state = _read_tab(raw, change.file.path)
            yield StoredTab(file, state, secret, change)

    def list(self, url: str | None = None, owner: bytes | None = None) -> list[tuple[TabFile, dict[str, object]]]:
        """Return the stored tabs, newest first."""
        if self.folder is None or not self.folder.is_dir():
            return []
        found = []
        for path in self.folder.glob("0x*.json"):
            raw = self._protected_file(path.stem).read()
            if raw is not None:
                file, _, state = _read_tab(raw, path)
                if url in (None, file.url) and owner in (None, file.owner):
                    found.append((file, state))
        return sorted(found, key=lambda each: each[0].posted_at, reverse=True)

    def faulty_providers(self) -> dict[str, str]:
        """Return the reason for the exclusion of each faulty provider, by `faulty_provider_key`."""
        if self.folder is None:
            return dict(self._faulty_in_memory)
        return _read_reasons(self._protected_file(_FAULTY_FILE_STEM).read())

    def add_faulty_provider(self, key: str, reason: str) -> None:
        self._change_faulty_providers(lambda reasons: reasons.__setitem__(key, reason))

    def forgive(self, key: str) -> bool:
        """Allow tabs with a faulty provider again. Return False if the provider was not excluded."""
        known = key in self.faulty_providers()
        self._change_faulty_providers(lambda reasons: reasons.pop(key, None))
        return known

    def _change_faulty_providers(self, change: Callable[[dict[str, str]], object]) -> None:
        if self.folder is None:
            change(self._faulty_in_memory)
            return
        with self._protected_file(_FAULTY_FILE_STEM).lock_for_change() as file:
            reasons = _read_reasons(file.read())
            change(reasons)
            file.write(json.dumps(reasons, indent=2, sort_keys=True) + "\n")

    def _protected_file(self, name: str) -> ProtectedFile:
        if self.folder is None:
            raise AssertionError("no folder is set for the files of tabs")
        if "/" in name or "\\" in name:
            raise Refused("the id of a tab must be a job id: 0x and 64 hex digits", "job_id")
        return ProtectedFile(self.folder / f"{name}.json", "HOME", _MAX_FILE_BYTES)


def tabs_folder(environment: Mapping[str, str]) -> Path | None:
    folder = configuration_folder(environment)
    return None if folder is None else folder / "tabs"


def faulty_provider_prefix(chain_id: int, job_registry: bytes) -> str:
    return f"{chain_id}:{hex_of(job_registry)}:"


def faulty_provider_key(file: TabFile) -> str:
    return f"{faulty_provider_prefix(file.chain_id, file.job_registry)}{file.provider}"


def _read_reasons(raw: bytes | None) -> dict[str, str]:
    value = {} if raw is None else parse(raw)
    if not isinstance(value, dict):
        raise _FILE_READER.refusal("faulty.json must be a JSON object: remove the file", None)
    return {str(key): str(reason) for key, reason in value.items()}


def _read_tab(raw: bytes, path: Path) -> tuple[TabFile, bytes, dict[str, object]]:
    try:
        fields = _FILE_READER.read_fields(parse(raw), None, _FIELDS)
        _FILE_READER.require_version(fields, "v", 1)
        counts = {name: _read_count(fields[name], name) for name in _COUNT_FIELDS}
        secret = _FILE_READER.read_hex(fields["key"], 32, "key")
        file = TabFile(
            job_id=_FILE_READER.read_hex(fields["job_id"], 32, "job_id"),
            url=_FILE_READER.read_text(fields["url"], "url", _MAX_TEXT_LENGTH),
            owner=_FILE_READER.read_hex(fields["owner"], 20, "owner"),
            job_registry=_FILE_READER.read_hex(fields["job_registry"], 20, "job_registry"),
            box_key=PublicKey(_FILE_READER.read_hex(fields["box_key"], 32, "box_key")),
            model=_FILE_READER.read_text(fields["model"], "model", _MAX_TEXT_LENGTH),
            fee_terms=FeeTerms(counts.pop("fee_bps"), counts.pop("gas_fee")),
            channel_key=SecretKey(_FILE_READER.read_hex(fields["channel_key"], 32, "channel_key")),
            voucher_wallet=Wallet(secret),
            delegation=read_delegation(fields),
            **counts,
        )
        return file, secret, _FILE_READER.read_object(fields["state"], "state")
    except Refused as refusal:
        raise Refused(f"{path}: {refusal.message}; rename the file", refusal.param, refusal.code) from None


def _read_count(value: Any, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= MAX_CODE_LENGTH:
        return int(value)
    return _FILE_READER.read_count(value, name, _MAX_INTEGER)
