"""From the words after ``lacc`` come calls of the driver, and from their results text, files and an
exit code.

Exit codes: 0 fine, 1 spec error or failed verify, 2 usage, 3 target not usable here, 70 internal
error."""

from lacc.cli import benching, commands, compiling, daily, deriving, lab, tuning, verifying
from lacc.cli.app import app

__all__ = [
    "app",
    "benching",
    "commands",
    "compiling",
    "daily",
    "deriving",
    "lab",
    "tuning",
    "verifying",
]
