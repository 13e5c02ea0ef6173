import attrs
import pytest
from eth_utils import decode_hex as raw

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.eip712 import digest, struct_hash
from common.messages.jobs import Cancel
from tests.vectors.vector_file import cases

VECTORS = cases("eip712.json")
DOMAINS = {case["domain_name"]: case["domain"] for case in VECTORS}


@pytest.fixture
def domains():
    return Domains.of(
        AddressBook(
            chain_id=int(DOMAINS["jobs"]["chainId"]),
            deploy_block=0,
            job_registry=raw(DOMAINS["jobs"]["verifyingContract"]),
            provider_registry=raw(DOMAINS["providers"]["verifyingContract"]),
            ask_registry=raw(DOMAINS["asks"]["verifyingContract"]),
            paytoken=raw(DOMAINS["token"]["verifyingContract"]),
            payment_token_decimals=6,
            token_domain=TokenDomain(DOMAINS["token"]["name"], DOMAINS["token"]["version"]),
        )
    )


def test_the_vectors_hold_every_domain():
    assert set(DOMAINS) == {field.name for field in attrs.fields(Domains)}


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_each_domain_of_a_deployment_is_as_in_the_vectors(domains, case):
    assert getattr(domains, case["domain_name"]).separator == raw(case["separator"])


def test_a_message_is_digested_in_its_domain(domains):
    [case] = [case for case in VECTORS if case["name"] == "Cancel, typical"]
    message = Cancel(raw(case["message"]["jobId"]), int(case["message"]["issuedAt"]))
    assert domains.jobs.digest(message) == raw(case["digest"])
    assert domains.jobs.digest(message) != digest(domains.asks.separator, struct_hash(message))
