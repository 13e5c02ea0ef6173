"""viem and ethers as wallets of a market. The chain accepts their signatures, and they verify ours."""

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from common.address_book import AddressBook, TokenDomain
from common.box import PublicKey
from common.container import commitment_of, seal
from common.domains import Domains
from common.keccak import keccak256
from common.messages import jobs, payments, providers, sessions
from common.scalars import base64_of, hex_of
from common.secp256k1 import Wallet, recover_address
from devnet.accounts import DevWallet
from tests.integration.coordinatord.peers.conftest import Served
from tests.integration.coordinatord.peers.typed_page import TYPES, Deployment, Library, library
from tests.integration.coordinatord.scene.stage import until

LIBRARIES: Final = ("viem", "ethers")
ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
HISTORIES: Final = 25  # of each type


@pytest.fixture(params=LIBRARIES)
def signer(request: pytest.FixtureRequest) -> Iterator[Library]:
    with library(request.param) as found:
        yield found


class _Signing:
    """A wallet built only from a library and the documentation, without our signing code."""

    def __init__(self, signer: Library, chain: dict[str, Any], wallet: DevWallet) -> None:
        self.signer, self.deployment, self.wallet = signer, Deployment(chain), wallet

    def __call__(self, kind: str, **message: Any) -> str:
        return self.signer.sign(self.wallet.private_key, self.deployment.typed(kind, message))


async def _signed_in(served: Served, signing: _Signing, role: str) -> dict[str, str]:
    address = signing.wallet.address.lower()
    nonce = (await served.http.get("/auth/nonce", params={"address": address})).json()["nonce"]
    signature = signing("SvcSession", address=address, nonce=nonce)
    body = {"address": address, "nonce": nonce, "signature": signature, "role": role}
    session = await served.http.post("/auth/session", json=body)
    assert session.status_code == 200, session.text
    return {"authorization": f"Bearer {session.json()['token']}"}


async def test_ops_signed_by_a_library_are_mined(served: Served, signer: Library, held: Callable[[str], None]) -> None:
    chain = (await served.http.get("/evm/chain")).json()
    wallets = served.world.wallets
    buyer, seller = (_Signing(signer, chain, wallets.with_role(role)[0]) for role in ("client", "provider"))
    book = served.config.addresses
    owner = bytes.fromhex(buyer.wallet.address[2:])
    container = seal(PublicKey(seller.wallet.box_key), book.chain_id, book.job_registry, owner, b"sealed")
    c = "0x" + commitment_of(container).c.hex()
    provider = served.world.market.provider_ids[seller.wallet.address]
    terms = {
        "modelId": 1,
        "slaSecs": 3600,
        "rateIn": "1000000",
        "rateOut": "2000000",
        "unitsIn": 1000,
        "unitsOut": 1000,
    }
    terms |= {"designated": provider, "expiresAt": int(time.time()) + 7200}
    order = {re.sub(r"[A-Z]", lambda at: "_" + at[0].lower(), name): value for name, value in terms.items()}
    job = hex_of(keccak256(owner + bytes.fromhex(c[2:])))
    order |= {"c": c, "owner": buyer.wallet.address.lower(), "job_id": job, "signature": buyer("Order", c=c, **terms)}
    quoted = await served.http.post("/v1/jobs", json=order)
    assert quoted.status_code == 402, quoted.text
    amount = quoted.json()["quote"]["amount"]
    payment = buyer(
        "ReceiveWithAuthorization",
        **{"from": buyer.wallet.address, "to": chain["contracts"]["job_registry"], "value": amount},
        **{"validAfter": 0, "validBefore": order["expires_at"] + 1, "nonce": job},
    )
    body = {**order, "amount": amount, "auth_sig": payment, "container": base64_of(container)}
    posted = await served.http.post("/v1/jobs", json=body)
    assert posted.status_code == 201, posted.text

    session, at = await _signed_in(served, seller, "provider"), int(time.time())
    claim = {"op": "claim", "job_id": job, "issued_at": at, "signature": seller("Claim", jobId=job, issuedAt=at)}
    settle = {"op": "settle", "job_id": job, "completion_tok": 7, "issued_at": at, "result": "AAAA"}
    settle["signature"] = seller("Settle", jobId=job, completionTok=7, issuedAt=at)
    for op in (claim, settle):
        ran = await served.http.post("/evm/ops", json=op, headers=session)
        assert ran.status_code == 201, ran.text
    await until(lambda: served.http.get(f"/v1/jobs/{job}"), 200)
    assert (await served.http.get(f"/v1/jobs/{job}")).json()["status"] == "completed"
    held("order, payment, sign-in, claim and settle signed from the page and mined")


# Our own signatures, of every type on the page.

_MODULES: Final = (jobs, payments, providers, sessions)
_DOMAIN_OF: Final = {
    "Order Cancel Claim Settle Fail": "jobs",
    "SetIdentity RequestCapacity": "providers",
    "AskSnapshot": "asks",
    "ReceiveWithAuthorization": "token",
    "Release HandoverAuth HandoverKeys": "escrow",
    "SvcSession": "session",
    "ResultKey": "results",
}


def _class_of(kind: str) -> Any:
    return next(getattr(module, kind) for module in _MODULES if hasattr(module, kind))


def _drawn(kind: str, structs: dict[str, Any], draw: random.Random) -> tuple[Any, Any]:
    """Return a value of this type, for our classes and for wallets."""
    if kind.startswith("uint"):
        top = (1 << int(kind[4:])) - 1
        number = draw.choice((0, 1, top, draw.randint(0, top)))
        return number, str(number)
    if kind.endswith("[]"):
        pairs = [_drawn(kind[:-2], structs, draw) for _ in range(draw.randint(0, 3))]
        return tuple(ours for ours, _ in pairs), [theirs for _, theirs in pairs]
    if kind == "string":
        text = draw.choice(("", "result key", "封 ‖ 𝕊", "n" * 100))
        return text, text
    if kind in structs:
        pairs = [_drawn(field["type"], structs, draw) for field in structs[kind]]
        names = [field["name"] for field in structs[kind]]
        theirs = dict(zip(names, (pair[1] for pair in pairs), strict=True))
        return _class_of(kind)(*(pair[0] for pair in pairs)), theirs
    length = {"address": 20, "bytes32": 32, "bytes": draw.choice((0, 1, 31, 32, 33, 200))}[kind]
    raw = draw.randbytes(length)
    return raw, hex_of(raw)


def _deployment(draw: random.Random) -> tuple[Domains, Deployment]:
    contracts = {name: draw.randbytes(20) for name in ("job_registry", "provider_registry", "ask_registry", "paytoken")}
    token = TokenDomain(draw.choice(("Dev Dollar", "", "USD ‖ 封")), "2")
    book = AddressBook(draw.choice((1, 31337, 2**53 - 1)), 0, **contracts, payment_token_decimals=6, token_domain=token)
    shown = {name: hex_of(contract) for name, contract in contracts.items()}
    named = {"name": token.name, "version": token.version}
    return Domains.of(book), Deployment({"chain_id": book.chain_id, "contracts": shown, "token_domain": named})


def _spellings(signature: bytes) -> dict[str, bytes]:
    """Return invalid spellings of a valid signature. They recover the same key, or nearly, and must be rejected."""
    r, s, v = signature[:32], int.from_bytes(signature[32:64], "big"), signature[64]
    return {
        "high s": r + (ORDER - s).to_bytes(32, "big") + bytes((55 - v,)),
        "64 bytes": signature[:64],
        "66 bytes": signature + b"\0",
        "v 0 or 1": signature[:64] + bytes((v - 27,)),
        "v 29": signature[:64] + b"\x1d",
        "r of zero": bytes(32) + signature[32:],
        "s of zero": r + bytes(32) + bytes((v,)),
        "no bytes": b"",
    }


# Spellings that libraries accept, but the contracts and we reject. Callers who verify with these libraries must check
# the form first. This test fails when a library changes.
_LENIENT: Final = {
    "viem": {"v 0 or 1", "high s"},
    "ethers": {"v 0 or 1", "64 bytes"},  # r and s with the parity in the first bit (EIP-2098)
}


def test_libraries_verify_our_signatures_of_every_type(signer: Library, held: Callable[[str], None]) -> None:
    draw = random.Random(22)
    domain_of = {kind: name for kinds, name in _DOMAIN_OF.items() for kind in kinds.split()}
    assert domain_of.keys() == TYPES.keys()
    verified = 0
    lenient: set[str] = set()
    for kind, structs in TYPES.items():
        for _ in range(HISTORIES):
            domains, deployment = _deployment(draw)
            wallet = Wallet(draw.randbytes(32))
            ours, theirs = _drawn(kind, structs, draw)
            digest = getattr(domains, domain_of[kind]).digest(ours)
            signature, typed = wallet.sign(digest), deployment.typed(kind, theirs)
            assert signer.accepts(hex_of(wallet.address), hex_of(signature), typed), (kind, theirs)
            assert not signer.accepts(hex_of(draw.randbytes(20)), hex_of(signature), typed)
            key = "0x" + wallet._secret.hex()  # type: ignore[attr-defined] # the test's own
            assert signer.sign(key, typed) == hex_of(signature)
            verified += 1
            for spelling, changed in _spellings(signature).items():
                assert recover_address(digest, changed) is None, spelling
                if signer.accepts(hex_of(wallet.address), hex_of(changed), typed):
                    lenient.add(spelling)
    assert lenient == _LENIENT[signer.name]
    beside = ", ".join(sorted(lenient))
    held(f"{verified} signatures of ours, of {len(TYPES)} types, verified and made alike (it takes also: {beside})")
