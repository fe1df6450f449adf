"""A sample of the zoo for every day: what ``selftest --sample`` hunts.

Whatever a check watches for, one of them gets wrong, and every side makes a mistake
(``tests/rules/test_sample.py`` holds it to that).
"""

from __future__ import annotations

SAMPLE: tuple[str, ...] = (
    "answers-bool",
    "changes-output",
    "commits-what-failed",
    "consumes-in-lookup",
    "counts-what-is-gone",
    "engines-of-their-own",
    "expects-hashes",
    "expects-rest",
    "forgets-what-was-received",
    "from-the-start",
    "invents-sends",
    "keeps-a-journal",
    "keeps-failed-blocks",
    "keeps-the-task",
    "own-table",
    "promises-the-longest-group",
    "publishes-too-soon",
    "pushes-on",
    "rebuilt-as-base",
    "reports-synchronous-loads",
    "reset-in-name-only",
    "resets-in-name-only",
    "rests-too-soon",
    "resumes-as-new",
    "runs-while-loading",
    "swaps",
    "takes-ids-in-use",
    "tells-of-no-abort",
    "trusts-its-memory",
    "wrong-block",
)
