"""What went wrong with the *input*: one sentence that says what, where and what to do."""

from __future__ import annotations


class UsageError(Exception):
    """The user's input cannot be used (exit code 3). The message is shown as it is."""


class RefusedError(UsageError):
    """The target says at start-up that it does not serve this shape; others may be fine."""


class HarnessError(Exception):
    """kvconform itself, or the target's determinism, failed (exit code 4): never a verdict."""
