"""``kvconform known``."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvconform.reports import crash, known, terminal


def add(options: argparse.Namespace) -> int:
    """Make an entry of known failures from a crash file.

    Raises:
        UsageError: the crash file or a value cannot be used.
    """
    path = Path(options.file)
    entry = known.add(
        path, crash.locate(options.crash), reason=options.reason, issue=options.issue,
        expires=options.expires,
    )  # fmt: skip
    late = ", a day that is over: it excuses nothing" if entry.expired else ""
    print(f"{path}: {entry.name} is known until {entry.expires}{late}")
    print(f"  {terminal.PROGRAM} check TARGET --known {path}")
    return 0
