from common.cid import cid_of, parse_cid
from tests.support.faults.tcp_proxy import with_other_cids

CID = str(cid_of(b"content"))


def test_header_names_a_wrong_cid_for_correct_content() -> None:
    answer = f"HTTP/1.1 200 OK\r\nx-amz-meta-cid: {CID}\r\n\r\n{CID}".encode()
    head, _, content = with_other_cids(answer).partition(b"\r\n\r\n")
    named = head.rpartition(b" ")[2].decode()
    assert (named != CID, len(head) + 4 + len(content), content.decode()) == (True, len(answer), CID)
    assert parse_cid(named, "cid").codec == "raw"
