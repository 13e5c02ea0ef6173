"""Build and check the member `tab` of a receipt, which proves the allowed, delivered and charged units of a tab.

    {"result": base64 of the sealed result, "seed": the seed that opens only this result}

The result contains the transcript. Its content id must be the one in the settle, so neither side can present another
transcript. Everyone who has the receipt can read the tab's answers and the digests of its requests.
"""

import hashlib
from typing import Final

from common.box import SecretKey
from common.cid import Cid, ImportProfile, UnixFsHasher, parse_cid
from common.domains import HasTabDomain
from common.envelope import ResultBody
from common.json_object import ObjectReader
from common.key_derivation import result_data_key
from common.refusal import Refused
from common.scalars import base64_of, hex_of, read_base64
from common.sealed_result import ResultOpener
from common.sealed_stream import ContainerHead
from common.tab.transcript import TabOrder, Transcript

TAB_FIELD: Final = "tab"
_MAX_RESULT_BYTES: Final = 32 << 20
_SEED_BYTES: Final = 32
_STORE_PROFILES: Final = tuple(
    ImportProfile(size, width) for size, width in ((1 << 20, 1024), (1 << 20, 174), (1 << 18, 174), (1 << 18, 1024))
)
_READER: Final = ObjectReader("the tab of a receipt", "malformed_receipt")
_PROVED_BY_RESULT: Final = "the result that the settle names"


def build_tab_member(sealed: bytes, keys: tuple[SecretKey, ...]) -> dict[str, str]:
    """Return the member `tab` for a sealed result. Refuse a result that no key opens as `unseal_failed`."""
    head = ContainerHead.parse(sealed)
    for key in keys[:-1]:
        try:
            return {"result": base64_of(sealed), "seed": hex_of(head.open_seed(key))}
        except Refused:
            continue
    return {"result": base64_of(sealed), "seed": hex_of(head.open_seed(keys[-1]))}


def tab_facts(  # noqa: PLR0917 - values of the receipt's events
    given: object, chain_id: int, job_registry: bytes, result_cid: str, order: TabOrder, domain: HasTabDomain
) -> list[tuple[str, str, str]]:
    """Return name, value and proof of each fact. Refuse a member that does not belong to this settle."""
    fields = _READER.read_fields(given, TAB_FIELD, {"result", "seed"})
    sealed = read_base64(fields["result"], _MAX_RESULT_BYTES, f"{TAB_FIELD}.result")
    seed = _READER.read_hex(fields["seed"], _SEED_BYTES, f"{TAB_FIELD}.seed")
    if not _has_cid(sealed, parse_cid(result_cid, "end.result_cid")):
        raise _READER.refusal("tab.result must have the content id in the settle", f"{TAB_FIELD}.result")
    opener = ResultOpener(lambda _: result_data_key(seed, chain_id, job_registry, order.job_id))
    body = ResultBody.parse(opener.pull(sealed) + opener.finish())
    transcript = Transcript.read(body.output)
    fault = transcript.find_fault(order, domain)
    voucher, delegation = transcript.voucher, transcript.delegation
    by_key = f"the signature of {hex_of(delegation.voucher_key)}"
    delegated = delegation.is_signed_by(order.owner, order.provider_id, domain)
    allowed = "nothing" if voucher is None else f"{voucher.allowance} units, {voucher.acknowledged} acknowledged"
    return [
        (
            "tab key",
            hex_of(delegation.voucher_key),
            f"the signature of {hex_of(order.owner)}" if delegated else "nothing",
        ),
        ("allowed", allowed, by_key),
        (
            "delivered",
            f"{len(transcript.exchanges)} answers",
            _PROVED_BY_RESULT if fault is None else "the provider's statement",
        ),
        ("charged", f"{order.completion_tok} units", "the settle"),
        ("verdict", fault or "charged as acknowledged", _PROVED_BY_RESULT),
    ]


def _has_cid(content: bytes, cid: Cid) -> bool:
    if cid.codec == "raw":
        return hashlib.sha256(content).digest() == cid.digest
    for profile in _STORE_PROFILES:
        hasher = UnixFsHasher(profile)
        hasher.update(content)
        if hasher.finish() == cid:
            return True
    return False
