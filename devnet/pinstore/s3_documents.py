"""The XML documents of multipart uploads."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape

import attrs

from devnet.pinstore.index import Part, Upload
from devnet.pinstore.s3_errors import S3Error

_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEADER: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_MOST_PARTS: Final = 10_000
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


@attrs.frozen
class NamedPart:
    """A part as the client lists it to complete an upload."""

    number: int
    etag: str


def initiated(bucket: str, upload: Upload) -> str:
    return _document("InitiateMultipartUploadResult", ("Bucket", bucket), ("Key", upload.key), ("UploadId", upload.id))


def completed(location: str, bucket: str, key: str, etag: str) -> str:
    return _document(
        "CompleteMultipartUploadResult",
        *(("Location", location), ("Bucket", bucket), ("Key", key), ("ETag", f'"{etag}"')),
    )


def parts_listed(bucket: str, upload: Upload, parts: Iterable[Part]) -> str:
    listed = "".join(
        f"<Part><PartNumber>{part.number}</PartNumber>"
        f"<LastModified>{datetime.fromtimestamp(part.modified, UTC):%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
        f"<ETag>&quot;{part.md5.hex()}&quot;</ETag><Size>{part.size}</Size></Part>"
        for part in parts
    )
    return _document(
        "ListPartsResult",
        *(("Bucket", bucket), ("Key", upload.key), ("UploadId", upload.id), ("IsTruncated", "false")),
        inner=listed,
    )


def read_part_number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _MOST_PARTS:
        raise S3Error("InvalidArgument", f"Part numbers run from 1 to {_MOST_PARTS}.")
    return int(text)


def read_completion(document: bytes) -> list[NamedPart]:
    """<CompleteMultipartUpload> with a <Part> of <PartNumber> and <ETag> each."""
    path: list[str] = []
    fields: dict[str, str] = {}
    parts: list[NamedPart] = []

    def start(name: str, _attributes: object) -> None:
        path.append(name.rpartition(" ")[2])

    def text(piece: str) -> None:
        if path[:2] == ["CompleteMultipartUpload", "Part"] and len(path) == 3:
            fields[path[2]] = fields.get(path[2], "") + piece

    def end(_name: str) -> None:
        if path == ["CompleteMultipartUpload", "Part"]:
            number = read_part_number(fields.get("PartNumber", "").strip())
            parts.append(NamedPart(number, fields.get("ETag", "").strip().strip('"')))
            fields.clear()
        path.pop()

    def refuse_doctype(*_: object) -> None:
        raise S3Error("MalformedXML", "Document type declarations are not accepted.")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = start
    parser.CharacterDataHandler = text
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse_doctype
    try:
        parser.Parse(document, True)
    except expat.ExpatError as error:
        raise S3Error("MalformedXML", f"The document is not well formed: {error}.") from None
    if not parts or len(parts) > _MOST_PARTS:
        raise S3Error("MalformedXML", f"The document must list 1 to {_MOST_PARTS} parts.")
    return parts


def _document(name: str, *fields: tuple[str, str], inner: str = "") -> str:
    body = "".join(f"<{field}>{escape(value)}</{field}>" for field, value in fields)
    return f'{_HEADER}<{name} xmlns="{_NAMESPACE}">{body}{inner}</{name}>'
