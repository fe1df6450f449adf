"""What went wrong with the *input*: one sentence that says what, where and what to do."""

from __future__ import annotations


class UsageError(Exception):
    """The user's input cannot be used (exit code 3). The message is shown as it is."""


class HarnessError(Exception):
    """kvconform itself, or the target's determinism, failed (exit code 4): never a verdict."""
