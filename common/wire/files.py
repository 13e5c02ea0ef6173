"""Shapes of uploaded files."""

from typing import Literal

from common.wire.shapes import Shape

Purpose = Literal["input", "result", "batch", "batch_output"]


class FileDetails(Shape, frozen=True):
    cid: str
    lines: int


class FileFields(Shape, frozen=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: str
    svc: FileDetails


class File(FileFields, frozen=True, tag_field="object", tag="file"):
    status: Literal["uploaded", "processed"]
