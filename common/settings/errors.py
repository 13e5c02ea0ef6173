"""Error for a setting that is missing, unknown or invalid."""

from pathlib import Path

import attrs

from common.refusal import Refused

KeyPath = tuple[str | int, ...]
"""Place of a value: `("model", 1, "slots")`. Elements of arrays are counted from 0."""


@attrs.frozen(slots=True)
class SettingError(Refused):
    """A setting is wrong. The message has the file, the key and the problem.

    `problem` continues a sentence that begins with the key: `must be an integer in 1..10, not 11`. `param` is the path
    with dots. `file` is None for the environment.
    """

    path: KeyPath = ()
    problem: str = ""
    file: Path | None = None

    @classmethod
    def at(cls, path: KeyPath, problem: str, file: Path | None = None) -> "SettingError":
        """
        >>> str(SettingError.at(("model", 1, "slots"), "must be an integer in 1..10, not 11", Path("svcd.toml")))
        'svcd.toml: model[1].slots must be an integer in 1..10, not 11'
        """
        key = dotted(path)
        sentence = f"{key} {problem}" if key else problem
        message = sentence if file is None else f"{file}: {sentence}"
        return cls(message, param=key or None, path=path, problem=problem, file=file)

    def below(self, *path: str | int) -> "SettingError":
        """Return the error with `path` prepended to its path."""
        return SettingError.at((*path, *self.path), self.problem, self.file)

    def in_file(self, file: Path) -> "SettingError":
        return SettingError.at(self.path, self.problem, file)


def dotted(path: KeyPath) -> str:
    """Return the path as messages write it: `model[1].slots`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else part
    return written
