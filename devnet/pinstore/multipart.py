"""Multipart uploads: parts come in any order and are joined when the client lists them."""

import hashlib
from collections.abc import Mapping
from typing import Final

import attrs
from anyio import to_thread
from starlette.responses import Response

from devnet.pinstore import s3_documents
from devnet.pinstore.content import Intake, Received
from devnet.pinstore.index import Part, StoredObject, Upload
from devnet.pinstore.objects import Objects
from devnet.pinstore.s3_errors import S3Error

LARGEST_COMPLETION: Final = 1 << 20
_SMALLEST_PART: Final = 5 << 20  # but for the last one


@attrs.frozen
class TargetPart:
    upload: Upload
    number: int


async def find(objects: Objects, key: str, query: Mapping[str, str]) -> Upload:
    upload = await to_thread.run_sync(objects.upload, query["uploadId"], key)
    if upload is None:
        raise S3Error("NoSuchUpload", "There is no such upload: it was completed or aborted, or never begun.")
    return upload


async def create(objects: Objects, bucket: str, key: str, content_type: str, metadata: dict[str, str]) -> Response:
    upload = await to_thread.run_sync(objects.create_upload, key, content_type, metadata)
    return _xml(s3_documents.initiated(bucket, upload))


async def target_part(objects: Objects, key: str, query: Mapping[str, str]) -> TargetPart:
    """Before the body is read: where it belongs."""
    number = s3_documents.read_part_number(query["partNumber"])
    return TargetPart(await find(objects, key, query), number)


async def put_part(objects: Objects, target: TargetPart, received: Received) -> Response:
    if not await to_thread.run_sync(objects.put_part, target.upload, target.number, received):
        received.path.unlink()
        raise S3Error("NoSuchUpload", "The upload ended while the part came in.")
    return Response(headers={"etag": f'"{received.md5.hex()}"'})


async def listing(objects: Objects, bucket: str, upload: Upload) -> Response:
    parts = await to_thread.run_sync(objects.parts, upload)
    return _xml(s3_documents.parts_listed(bucket, upload, parts))


async def complete(objects: Objects, upload: Upload, body: Received) -> StoredObject:
    """Join the parts that `body` lists into the object."""
    return await to_thread.run_sync(_complete, objects, upload, body)


def completion(location: str, bucket: str, stored: StoredObject, headers: Mapping[str, str]) -> Response:
    return _xml(s3_documents.completed(location, bucket, stored.key, stored.etag), headers)


def _complete(objects: Objects, upload: Upload, body: Received) -> StoredObject:
    try:
        named = s3_documents.read_completion(body.path.read_bytes())
    finally:
        body.path.unlink()
    parts = _chosen(named, objects.parts(upload))
    intake = Intake(objects.incoming())
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
    stored = objects.put(upload.key, joined, f"{digest}-{len(parts)}", upload.content_type, upload.metadata)
    objects.end_upload(upload)
    return stored


def _chosen(named: list[s3_documents.NamedPart], held: list[Part]) -> list[Part]:
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


def _xml(document: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(document, media_type="application/xml", headers=headers)
