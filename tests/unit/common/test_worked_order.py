"""The worked order: this project computes every value that another program computed from the same secrets."""

import base64

import pytest

from common import container
from common.api import worked_order
from common.box import SecretKey
from common.canonical_json import canonical
from common.cid import cid_of
from common.domains import SigningDomain
from common.eip712 import Domain, struct_hash
from common.envelope import Envelope, ResultBody
from common.key_derivation import data_key, result_data_key, result_key_from_signature
from common.messages.jobs import Order, Settle
from common.messages.payments import ReceiveWithAuthorization, job_payment
from common.messages.sessions import ResultKey
from common.quotes import FeeTerms, derive_job_id, divide_payment, quote
from common.sealed_result import open_result
from common.secp256k1 import Wallet
from common.strict_json import parse
from tests.vectors.generate_sealing import framed, sealed_box_from, stream
from tests.vectors.vector_file import Case, cases


@pytest.fixture(name="one")
def _one() -> Case:
    [one] = cases("worked_order.json")
    return one


def raw(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def order_of(one: Case) -> Order:
    told = one["order"]
    return Order(
        c=raw(told["c"]),
        model_id=int(told["modelId"]),
        sla_secs=int(told["slaSecs"]),
        rate_in=int(told["rateIn"]),
        rate_out=int(told["rateOut"]),
        units_in=int(told["unitsIn"]),
        units_out=int(told["unitsOut"]),
        designated=int(told["designated"]),
        expires_at=int(told["expiresAt"]),
    )


def sealed(one: Case, recipient: bytes, prefix: str, key: bytes, plaintext: bytes) -> bytes:
    """Seal with the seed, the ephemeral key and the header of the case, which sealing otherwise draws at random."""
    wrap = sealed_box_from(SecretKey(raw(one[f"{prefix}ephemeral_secret"])), raw(one[f"{prefix}seed"]), recipient)
    return b"\x01" + wrap + stream(key, raw(one[f"{prefix}header"]), framed(plaintext))


def test_wallet_makes_the_result_key(one: Case) -> None:
    wallet = Wallet(raw(one["wallet_secret"]))
    assert wallet.address == raw(one["owner"])
    results: SigningDomain[ResultKey] = SigningDomain(Domain("SVC Results", "1", int(one["chain_id"])))
    digest = results.digest(ResultKey("result key"))
    assert (digest, wallet.sign(digest)) == (raw(one["result_key_digest"]), raw(one["result_key_signature"]))
    key = result_key_from_signature(raw(one["result_key_signature"]))
    assert (key.raw, key.public.raw) == (raw(one["result_secret"]), raw(one["result_key"]))


def test_envelope_is_sealed_to_the_container(one: Case) -> None:
    model_input = parse(one["input"].encode())
    assert isinstance(model_input, dict)
    assert canonical(model_input).decode() == one["input"]
    envelope = Envelope(raw(one["owner"]), one["model"], model_input, SecretKey(raw(one["result_secret"])).public)
    assert envelope.encode().decode() == one["envelope"]

    box = SecretKey(raw(one["box_secret"]))
    assert box.public.raw == raw(one["box_key"])
    place = (int(one["chain_id"]), raw(one["job_registry"]), raw(one["owner"]))
    key = data_key(raw(one["seed"]), *place)
    assert key == raw(one["data_key"])
    made = sealed(one, box.public.raw, "", key, envelope.encode())
    assert base64.b64encode(made).decode() == one["container"]
    assert made[1:81] == raw(one["seed_wrap"])
    assert made[81:] == raw(one["ciphertext"])
    committed = container.commitment_of(made)
    assert (committed.ct_hash, committed.c) == (raw(one["ct_hash"]), raw(one["c"]))
    assert str(cid_of(made)) == one["task_cid"]
    assert container.open_with_secret(box, *place, made) == envelope.encode()


def test_order_and_payment_are_signed(one: Case) -> None:
    wallet, order = Wallet(raw(one["wallet_secret"])), order_of(one)
    registry, chain_id = raw(one["job_registry"]), int(one["chain_id"])
    assert order.c == raw(one["c"])
    assert struct_hash(order) == raw(worked_order.ORDER_HASH)
    assert derive_job_id(wallet.address, order.c) == raw(one["job_id"])
    jobs: SigningDomain[Order | Settle] = SigningDomain(Domain("SVC Jobs", "2", chain_id, registry))
    digest = jobs.digest(order)
    assert (digest, wallet.sign(digest)) == (raw(one["order_digest"]), raw(one["order_signature"]))

    token: SigningDomain[ReceiveWithAuthorization] = SigningDomain(
        Domain(one["token_name"], one["token_version"], chain_id, raw(one["token"]))
    )
    payment = job_payment(wallet.address, registry, int(one["amount"]), order.expires_at, raw(one["job_id"]))
    digest = token.digest(payment)
    assert (digest, wallet.sign(digest)) == (raw(one["payment_digest"]), raw(one["auth_sig"]))


def test_amount_is_shared_out(one: Case) -> None:
    order, terms = order_of(one), FeeTerms(int(one["fee_bps"]), int(one["gas_fee"]))
    priced = (order.rate_in, order.rate_out, order.units_in, order.units_out)
    assert quote(*priced, terms).amount == int(one["amount"])
    shares = divide_payment(*priced, terms, completion_tok=int(one["completion_tok"]))
    told = [int(one[name]) for name in ("cost", "treasury", "refund")]
    assert [shares.provider_amount, shares.treasury_amount, shares.refund] == told


def test_result_is_sealed_and_settled(one: Case) -> None:
    place = (int(one["chain_id"]), raw(one["job_registry"]), raw(one["job_id"]))
    body = one["result_body"].encode()
    assert ResultBody.parse(body).job_id == raw(one["job_id"])
    key = result_data_key(raw(one["result_seed"]), *place)
    assert key == raw(one["result_data_key"])
    made = sealed(one, raw(one["result_key"]), "result_", key, body)
    assert base64.b64encode(made).decode() == one["sealed_result"]
    assert str(cid_of(made)) == one["result_cid"]
    assert open_result(SecretKey(raw(one["result_secret"])), *place, made) == body

    jobs: SigningDomain[Order | Settle] = SigningDomain(Domain("SVC Jobs", "2", place[0], place[1]))
    digest = jobs.digest(Settle(place[2], int(one["completion_tok"]), int(one["settle_issued_at"])))
    assert digest == raw(one["settle_digest"])
    assert Wallet(raw(one["provider_secret"])).sign(digest) == raw(one["settle_signature"])
