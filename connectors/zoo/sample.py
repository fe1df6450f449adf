"""A sample of the zoo for every day: what ``selftest --sample`` hunts.

It has a member from each module of the zoo and from each side, and whatever a check watches for one
of them gets wrong (``tests/rules/test_sample.py`` holds it to that). Quick ones were chosen.
"""

from __future__ import annotations

SAMPLE: tuple[str, ...] = (
    "answers-bool",
    "changes-output",
    "consumes-in-lookup",
    "counts-what-is-gone",
    "double-completion",
    "drops-empty-jobs",
    "drops-the-record",
    "expects-rest",
    "forgets-what-was-received",
    "from-the-start",
    "full-hit-report",
    "hex-in-one-half",
    "keeps-failed-blocks",
    "keeps-lives",
    "late-failure",
    "leak-on-abort",
    "lease-ignored",
    "must-be-known",
    "never-rests",
    "old-parameters",
    "reports-synchronous-loads",
    "reset-in-name-only",
    "resumes-as-new",
    "runs-while-loading",
    "saves-what-is-allocated",
    "sent-too-soon",
    "takes-ids-in-use",
    "two-signals",
    "unlocks-what-it-loads",
    "wrong-block",
)
