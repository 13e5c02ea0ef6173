import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from common.api.chain import reported_book
from common.domains import Domains, SigningDomain
from common.eip712 import Message
from common.messages.jobs import Cancel, Order
from common.messages.payments import job_payment
from common.messages.sessions import ResultKey, SvcSession
from svc.core.market import VerifiedMarket
from svc.core.typed_data import build_signing_request
from svc.records import Contracts, Deployment, TokenName

CONTRACTS = Contracts(*(f"0x{n:02x}" + "ab" * 19 for n in (1, 2, 3, 4)))
TOLD = reported_book(Deployment(31337, CONTRACTS, 6, TokenName("Dev Dollar", "1"), 1, 1, 1, 250))
DOMAINS: Domains = VerifiedMarket.of(TOLD).domains
OWNER, JOB = bytes(range(20)), bytes(range(32))
ORDER = Order(JOB, 1, 3600, 2**128 - 1, 0, 2**32 - 1, 5, 0, 2**64 - 1)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (DOMAINS.jobs, ORDER),
        (DOMAINS.jobs, Cancel(JOB, 5)),
        (DOMAINS.token, job_payment(OWNER, bytes(20), 2**130, 1_700_000_000, JOB)),
        (DOMAINS.session, SvcSession(OWNER, "ab" * 16)),
        (DOMAINS.results, ResultKey("result key")),
    ],
)
def test_both_request_forms_are_one_message_to_wallets(domain: SigningDomain[Message], message: Message) -> None:
    asked = build_signing_request("thing", domain, message)
    signable = encode_typed_data(full_message=asked.typed_data())
    assert keccak(b"\x19" + signable.version + signable.header + signable.body) == asked.digest
