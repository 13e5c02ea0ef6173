"""Signatures of webhooks, checked against the specification's example."""

import base64

import pytest

from common.refusal import Refused
from common.webhooks import generate_secret, read_secret, secret_text, signature_of, signed_headers, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'


def test_signature_matches_standard_webhooks_libraries() -> None:
    assert signature_of(read_secret(SECRET), ID, AT, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_any_of_several_signatures_verifies() -> None:
    headers = signed_headers(read_secret(SECRET), ID, AT, BODY)
    assert verify(SECRET, headers, BODY, AT + 299) == ID
    headers["webhook-signature"] = f"v1,AAAA v1a,BBBB {headers['webhook-signature']}"
    assert verify(SECRET, headers, BODY, AT - 299) == ID


@pytest.mark.parametrize(
    ("changed", "body", "now", "named"),
    [
        ({}, BODY + b" ", AT, "webhook-signature"),
        ({"webhook-id": "msg_other"}, BODY, AT, "webhook-signature"),
        ({"webhook-timestamp": str(AT + 1)}, BODY, AT, "webhook-signature"),
        ({"webhook-signature": ""}, BODY, AT, "webhook-signature"),
        ({"webhook-signature": "v1,ü"}, BODY, AT, "webhook-signature"),
        ({}, BODY, AT + 301, "webhook-timestamp"),
        ({}, BODY, AT - 301, "webhook-timestamp"),
        ({"webhook-timestamp": "soon"}, BODY, AT, "webhook-id"),
        ({"webhook-id": ""}, BODY, AT, "webhook-id"),
    ],
)
def test_anything_else_is_refused(changed: dict[str, str], body: bytes, now: int, named: str) -> None:
    headers = {**signed_headers(read_secret(SECRET), ID, AT, BODY), **changed}
    with pytest.raises(Refused) as refused:
        verify(SECRET, headers, body, now)
    assert refused.value.param == named


def test_secrets_round_trip_and_bad_ones_are_not_shown() -> None:
    secret = generate_secret()
    assert read_secret(secret_text(secret)) == secret
    for length in (0, 23, 65):
        text = secret_text(b"x" * length)
        with pytest.raises(Refused) as refused:
            read_secret(text)
        assert text[8:] not in refused.value.message or not text[8:]
    for text in ("", "whsec_é", "whsec_" + "?" * 40, base64.b64encode(secret).decode()):
        with pytest.raises(Refused):
            read_secret(text)
