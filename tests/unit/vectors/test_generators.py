"""The committed vector files equal the generators' output."""

import pytest

from tests.vectors import (
    generate_block_contents,
    generate_bundle,
    generate_receipts,
    generate_sealing,
    generate_signing,
    generate_texts,
    generate_units,
)
from tests.vectors.vector_file import FOLDER


@pytest.mark.parametrize(
    "generator",
    [
        generate_block_contents,
        generate_bundle,
        generate_receipts,
        generate_sealing,
        generate_signing,
        generate_texts,
        generate_units,
    ],
    ids=lambda made: made.__name__,
)
def test_committed_vectors_reproduce(generator: object) -> None:
    for name, text in generator.files().items():  # type: ignore[attr-defined]  # each of them has it
        assert (FOLDER / name).read_text("utf-8") == text, f"{name} differs; run python -m {generator}"
