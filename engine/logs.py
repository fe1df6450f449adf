"""Log lines of the target and of vLLM become events of the run, at their step."""

from __future__ import annotations

import logging
from collections.abc import Callable

_LEVEL = logging.WARNING


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(_LEVEL)
        self.sink: Callable[[str, str, str], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.sink is not None:
            self.sink(record.levelname, record.name, record.getMessage())


_handler = _Handler()


def capture(sink: Callable[[str, str, str], None] | None) -> None:
    """Send log records (level, logger, message) to ``sink`` from now on; None: nowhere."""
    _handler.sink = sink
    vllm = logging.getLogger("vllm")
    if _handler not in vllm.handlers:
        # vLLM's own handlers would print into the middle of our report.
        vllm.handlers[:] = [_handler]
        vllm.propagate = False
        vllm.setLevel(_LEVEL)
        logging.getLogger().addHandler(_handler)
