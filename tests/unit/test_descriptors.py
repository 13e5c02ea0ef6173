"""A daemon without a free file descriptor still encodes text: nothing that this needs is read from a file first."""

import subprocess
import sys

import pytest

_WITHOUT_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("from common.canonical_json import canonical", "canonical({'b': 1, 'a': 2})"),
        ("from svcd.payload.sealable import to_sealable", r"to_sealable('\ud83d\ude00')"),
    ],
)
def test_text_is_encoded_without_a_free_descriptor(imports: str, use: str) -> None:
    script = f"{imports}\n{_WITHOUT_DESCRIPTORS}\n{use}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
