"""Shapes of uploaded files."""

from typing import Annotated, Literal

from common.api.shapes import Shape, described
from common.api.worked_order import FILE_ID

Purpose = Literal["input", "result", "batch", "batch_output"]


class FileDetails(Shape, frozen=True):
    """Content id and number of lines of a file."""

    cid: str
    lines: Annotated[int, described("non-blank lines of a `batch` file, otherwise 0", 1)]


class FileFields(Shape, frozen=True):
    id: Annotated[str, described("id of the file", FILE_ID)]
    bytes: int
    created_at: int
    expires_at: Annotated[
        int,
        described(
            "expiry in Unix seconds: 300 s after the upload, and later once a job, settle or batch uses the file",
            1800000300,
        ),
    ]
    filename: str
    purpose: Purpose
    status: str
    svc: FileDetails


class File(FileFields, frozen=True, tag_field="object", tag="file"):
    """An uploaded file, or an output file of a batch."""

    status: Annotated[
        Literal["uploaded", "processed"],
        described("`uploaded`, or `processed` for files that a batch wrote", "uploaded"),
    ]
