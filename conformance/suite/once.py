"""Work that several processes need done, and one of them does."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def once(path: Path, make: Callable[[], Any]) -> Any:
    """What ``make`` returns, as JSON data.

    The first process that asks makes it and stores it in ``path``; the others wait and read. When
    ``make`` raises, nothing is stored and the next one tries.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process that holds it
        if not path.exists():
            new = path.with_suffix(".new")
            new.write_text(json.dumps(make()), encoding="utf-8")
            new.replace(path)
        return json.loads(path.read_text(encoding="utf-8"))
