"""Error for a setting that is missing, unknown or invalid."""

from pathlib import Path

import attrs

from common.refusal import Refused

KeyPath = tuple[str | int, ...]
"""Path of a value in a TOML file, e.g. `("model", 1, "slots")`. Array indexes start at 0."""


@attrs.frozen(slots=True)
class SettingError(Refused):
    """Error in a setting. The message has the file, the key and the problem.

    `problem` completes a sentence that starts with the key, e.g. `must be an integer in 1..10, not 11`. `param` is the
    path as text. `file` is None for a variable.
    """

    path: KeyPath = ()
    problem: str = ""
    file: Path | None = None

    @classmethod
    def at(cls, path: KeyPath, problem: str, file: Path | None = None) -> "SettingError":
        """Build the error with its message.

        >>> str(SettingError.at(("model", 1, "slots"), "must be an integer in 1..10, not 11", Path("svcd.toml")))
        'svcd.toml: model[1].slots must be an integer in 1..10, not 11'
        """
        key = dotted_path(path)
        sentence = f"{key} {problem}" if key else problem
        message = sentence if file is None else f"{file}: {sentence}"
        return cls(message, param=key or None, path=path, problem=problem, file=file)

    def with_prefix(self, *path: str | int) -> "SettingError":
        """Return the error with `path` prepended to its path."""
        return SettingError.at((*path, *self.path), self.problem, self.file)

    def in_file(self, file: Path) -> "SettingError":
        return SettingError.at(self.path, self.problem, file)


def dotted_path(path: KeyPath) -> str:
    """Return the path as text for messages, e.g. `model[1].slots`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else part
    return written
