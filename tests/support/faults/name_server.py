"""A name server for child processes that can be taken down: names under .test lead to the loopback.

names = NameServer.built_in(folder)
subprocess.Popen(program, env={**environment, **names.environment})
with names.down():
    ...                       # each lookup fails, as with a name server that does not answer
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import attrs

_SOURCE: Final = Path(__file__).with_name("names.c")


@attrs.frozen
class NameServer:
    library: Path
    switch: Path

    @classmethod
    def built_in(cls, folder: Path) -> Self:
        """Compile the library that takes the place of libc's resolver in a process that preloads it."""
        library = folder / "names.so"
        subprocess.run(("cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"), check=True)
        return cls(library, folder / "names-down")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "NAMES_DOWN": str(self.switch)}

    @contextmanager
    def down(self) -> Iterator[None]:
        self.switch.touch()
        try:
            yield
        finally:
            self.switch.unlink()
