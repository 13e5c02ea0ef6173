import pytest

from devnet.pinstore.multipart import NamedPart, read_completion
from devnet.pinstore.s3_errors import S3Error

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@pytest.mark.parametrize("namespace", ["", f" {NAMESPACE}"])
def test_completion_lists_parts_with_and_without_the_namespace(namespace: str) -> None:
    document = (
        f"<CompleteMultipartUpload{namespace}>"
        "<Part><ETag>&quot;aa&quot;</ETag><PartNumber>1</PartNumber></Part>"
        "<Part><PartNumber>2</PartNumber><ChecksumCRC32>x</ChecksumCRC32><ETag>bb</ETag></Part>"
        "</CompleteMultipartUpload>"
    )
    assert read_completion(document.encode()) == [NamedPart(1, "aa"), NamedPart(2, "bb")]


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b"", "MalformedXML"),
        (b"<CompleteMultipartUpload/>", "MalformedXML"),
        (b"<CompleteMultipartUpload><Part>", "MalformedXML"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><CompleteMultipartUpload/>", "MalformedXML"),
        (
            b"<CompleteMultipartUpload><Part><PartNumber>0</PartNumber></Part></CompleteMultipartUpload>",
            "InvalidArgument",
        ),
    ],
    ids=["nothing", "no parts", "cut off", "entities", "part zero"],
)
def test_document_that_lists_no_parts_properly_is_refused(document: bytes, code: str) -> None:
    with pytest.raises(S3Error) as refused:
        read_completion(document)
    assert refused.value.code == code
