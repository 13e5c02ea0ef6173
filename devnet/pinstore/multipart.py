"""Multipart uploads: parts come in any order and are joined when the client lists them."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape

import attrs
from aiohttp import web
from anyio import to_thread

from devnet.pinstore.content import ContentIntake, Received
from devnet.pinstore.objects import MultipartUpload, Objects, Part, Put, StoredObject
from devnet.pinstore.s3_errors import S3Error, xml

# The XML documents of multipart uploads.

_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEADER: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_MOST_PARTS: Final = 10_000
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


@attrs.frozen
class NamedPart:
    """A part as the client lists it to complete an upload."""

    number: int
    etag: str


def initiated(bucket: str, upload: MultipartUpload) -> str:
    return _document("InitiateMultipartUploadResult", ("Bucket", bucket), ("Key", upload.key), ("UploadId", upload.id))


def completed(location: str, bucket: str, key: str, etag: str) -> str:
    return _document(
        "CompleteMultipartUploadResult",
        *(("Location", location), ("Bucket", bucket), ("Key", key), ("ETag", f'"{etag}"')),
    )


def parts_listed(bucket: str, upload: MultipartUpload, parts: Iterable[Part]) -> str:
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


LARGEST_COMPLETION: Final = 1 << 20
_SMALLEST_PART: Final = 5 << 20  # but for the last one


@attrs.frozen
class TargetPart:
    upload: MultipartUpload
    number: int


async def find(objects: Objects, key: str, query: Mapping[str, str]) -> MultipartUpload:
    upload = await to_thread.run_sync(objects.upload, query["uploadId"], key)
    if upload is None:
        raise S3Error("NoSuchUpload", "There is no such upload: it was completed or aborted, or never begun.")
    return upload


async def create(objects: Objects, bucket: str, key: str, content_type: str, metadata: dict[str, str]) -> web.Response:
    upload = await to_thread.run_sync(objects.create_upload, key, content_type, metadata)
    return xml(initiated(bucket, upload))


async def target_part(objects: Objects, key: str, query: Mapping[str, str]) -> TargetPart:
    """Before the body is read: where it belongs."""
    number = read_part_number(query["partNumber"])
    return TargetPart(await find(objects, key, query), number)


async def put_part(objects: Objects, target: TargetPart, received: Received) -> web.Response:
    if not await to_thread.run_sync(objects.put_part, target.upload, target.number, received):
        received.path.unlink()
        raise S3Error("NoSuchUpload", "The upload ended while the part came in.")
    return web.Response(headers={"etag": f'"{received.digests.md5.hex()}"'})


async def listing(objects: Objects, bucket: str, upload: MultipartUpload) -> web.Response:
    parts = await to_thread.run_sync(objects.parts, upload)
    return xml(parts_listed(bucket, upload, parts))


async def complete(objects: Objects, upload: MultipartUpload, body: Received) -> StoredObject:
    """Join the parts that `body` lists into the object."""
    return await to_thread.run_sync(_complete, objects, upload, body)


def completion(location: str, bucket: str, stored: StoredObject, headers: Mapping[str, str]) -> web.Response:
    return xml(completed(location, bucket, stored.key, stored.etag), headers=headers)


def _complete(objects: Objects, upload: MultipartUpload, body: Received) -> StoredObject:
    try:
        named = read_completion(body.path.read_bytes())
    finally:
        body.path.unlink()
    parts = _chosen(named, objects.parts(upload))
    intake = ContentIntake(objects.incoming())
    try:
        for part in parts:
            intake.copy_from(objects.part_content(part))
        joined = intake.finish()
    except FileNotFoundError:
        intake.discard()
        raise S3Error("NoSuchUpload", "The upload ended while its parts were joined.") from None
    except BaseException:
        intake.discard()
        raise
    digest = hashlib.md5(b"".join(part.md5 for part in parts), usedforsecurity=False).hexdigest()
    put = Put(upload.key, joined, f"{digest}-{len(parts)}", upload.content_type, upload.metadata)
    (stored,) = objects.put([put])
    objects.end_upload(upload)
    return stored


def _chosen(named: list[NamedPart], held: list[Part]) -> list[Part]:
    numbers = [part.number for part in named]
    if numbers != sorted(set(numbers)):
        raise S3Error("InvalidPartOrder", "Parts must be listed by ascending number, each once.")
    by_number = {part.number: part for part in held}
    chosen = []
    for part in named:
        match = by_number.get(part.number)
        if match is None or match.md5.hex() != part.etag:
            raise S3Error("InvalidPart", f"Part {part.number} was not uploaded, or has another ETag.")
        chosen.append(match)
    for match in chosen[:-1]:
        if match.size < _SMALLEST_PART:
            raise S3Error("EntityTooSmall", f"Part {match.number} has fewer than {_SMALLEST_PART} bytes.")
    return chosen
