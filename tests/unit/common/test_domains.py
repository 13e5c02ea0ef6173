import pytest

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.eip712 import digest
from common.messages.jobs import Cancel
from tests.vectors.read import raw, vectors

VECTORS = vectors("eip712")


@pytest.fixture
def domains():
    contract = {name: raw(VECTORS["domains"][name]["verifyingContract"]) for name in ("jobs", "providers")}
    asks, token = VECTORS["domains"]["asks"], VECTORS["domains"]["token"]
    return Domains.of(
        AddressBook(
            chain_id=int(token["chainId"]),
            deploy_block=0,
            job_registry=contract["jobs"],
            provider_registry=contract["providers"],
            ask_registry=raw(asks["verifyingContract"]),
            paytoken=raw(token["verifyingContract"]),
            payment_token_decimals=6,
            token_domain=TokenDomain(token["name"], token["version"]),
        )
    )


@pytest.mark.parametrize("name", VECTORS["domains"])
def test_each_domain_of_a_deployment_is_as_in_the_vectors(domains, name):
    assert getattr(domains, name).separator == raw(VECTORS["domains"][name]["separator"])


def test_a_message_is_digested_in_its_domain(domains):
    case = VECTORS["cases"]["Cancel"][1]
    message = Cancel(raw(case["message"]["jobId"]), int(case["message"]["issuedAt"]))
    assert domains.jobs.digest(message) == raw(case["digest"])
    assert domains.jobs.digest(message) != digest(domains.asks.separator, message.struct_hash())
