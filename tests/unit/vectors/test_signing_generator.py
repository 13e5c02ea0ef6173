"""The committed vector files of signing equal the generator's output."""

import pytest

from tests.vectors.generate_signing import files
from tests.vectors.vector_file import FOLDER

FILES = files()


@pytest.mark.parametrize("name", FILES)
def test_committed_vectors_reproduce(name):
    assert (FOLDER / name).read_text("utf-8") == FILES[name]
