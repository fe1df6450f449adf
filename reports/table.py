"""A run as a table: a row for each thing that the driver did, a column per thing that matters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvconform.scenario.trace import Event, Kind

_SHORT = {
    "WAITING": "waiting",
    "WAITING_FOR_REMOTE_KVS": "loading",
    "RUNNING": "running",
    "PREEMPTED": "preempted",
    "FINISHED_STOPPED": "ended",
    "FINISHED_LENGTH_CAPPED": "ended",
    "FINISHED_ABORTED": "aborted",
    "FINISHED_ERROR": "failed",
}
COLUMNS = ("step", "action", "requests", "free", "open", "the connector said")
WIDTHS = (6, 28, 24, 4, 4, 46)


class _State:
    def __init__(self) -> None:
        self.requests: dict[str, str] = {}
        self.free = ""
        self.open = 0

    def text(self) -> str:
        return " ".join(f"{n}:{s}" for n, s in self.requests.items()) or "-"


def rows(events: Iterable[Event]) -> list[tuple[str, ...]]:
    """The table's rows, oldest first."""
    state = _State()
    out: list[tuple[str, ...]] = []
    said: list[str] = []
    label: tuple[str, str] = ("", "")

    def flush() -> None:
        nonlocal label
        if label != ("", "") or said:
            out.append((*label, state.text(), state.free, str(state.open or "-"), "; ".join(said)))
        said.clear()
        label = ("", "")

    for event in events:
        data = event.data
        if label[0] and event.engine >= 0 and f"e{event.engine} {event.step}" != label[0]:
            flush()  # what a step's scheduling says comes before the step's own line
        match event.kind:
            case Kind.ACTION:
                flush()
                label = ("", action_text(data["action"], data["resolved"], data["effect"]))
            case Kind.DRAIN:
                flush()
                label = ("", "drain: faults off")
            case Kind.SCHEDULED:
                if label[0]:
                    flush()
                label = (f"e{event.engine} {event.step}", label[1])
                state.free = str(data["free"])
                if data["tokens"]:
                    tokens = ", ".join(f"{n}+{t}" for n, t in data["tokens"].items())
                    label = (label[0], label[1] or f"computes {tokens}")
            case Kind.STATUS:
                if data["new"] is None:
                    state.requests.pop(event.request or "", None)
                else:
                    state.requests[event.request or ""] = _SHORT.get(data["new"], data["new"])
            case Kind.OPENED:
                state.open += 1
            case Kind.MOVED:
                state.open -= 1
                if data["failed"]:
                    said.append(f"({data['transfer']} fails: blocks {data['failed']})")
            case _:
                text = saying(event)
                if text:
                    said.append(text)
    flush()
    return out


def saying(event: Event) -> str:
    """What the connector said in one event, in a few words."""
    data = event.data
    match event.kind:
        case Kind.HOOK if data["name"] == "get_num_new_matched_tokens":
            return f"lookup {event.request} ({data['local']} local) -> {_answer(data['answer'])}"
        case Kind.HOOK if data["name"].startswith("request_finished"):
            return (
                f"{event.request} finished -> {'keep blocks' if data['delayed'] else 'free blocks'}"
            )
        case Kind.ADMITTED if data["external"]:
            return (
                f"{event.request} is promised {data['external']} in blocks {_plain(data['blocks'])}"
            )
        case Kind.RAN:
            parts = [
                f"{key} {', '.join(map(str, sorted(data[key])))}"
                for key in ("recving", "sending", "invalid", "failed")
                if data[key]
            ]
            return f"rank {event.rank}: {'; '.join(parts)}"
        case Kind.RAISED:
            return f"{data['name']} raises {data['error']}"
        case Kind.WRONG_KV:
            return f"{event.request} reads wrong KV at {data['position']}"
        case Kind.BROKE:
            return f"vLLM raises {data['error']}: {data['source']}"
        case Kind.FORGOT:
            return f"the store forgets {data['blocks']} block(s)"
        case Kind.RESET:
            return f"reset {'done' if data['ok'] else 'refused'}"
        case Kind.DEVICE if data["misuses"]:
            return f"device: {data['misuses'][0][1]}"
        case Kind.LEFT:
            return f"left over: {data['what']} {event.request or ''} {data['detail']}"
    return ""


def action_text(action: dict[str, Any], resolved: str, effect: bool) -> str:
    """An action in words."""
    do = action["do"]
    rest = {k: v for k, v in action.items() if k not in ("do", "prompt")}
    prompt = action.get("prompt")
    words = [do]
    if prompt is not None:
        answer = f"~{prompt['answer']}" if prompt.get("answer") else ""
        tail = f"+{prompt['tail']}" if prompt.get("tail") else ""
        words.append(f"{resolved} prompt {prompt['family']}:{prompt['length']}{answer}{tail}")
    elif resolved:
        words.append(resolved)
    words += [f"{k}={v}" for k, v in rest.items() if k not in ("request", "transfer", "engine")]
    return " ".join(words) + ("" if effect else " (no effect)")


def _answer(value: Any) -> str:
    return _plain(tuple(value)) if isinstance(value, list) else _plain(value)  # from JSON


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        if len(value) == 1 and isinstance(value[0], tuple | list):
            return _plain(list(value[0]))
        brackets = "()" if isinstance(value, tuple) else "[]"
        return brackets[0] + ", ".join(_plain(v) for v in value) + brackets[1]
    return str(value)


def render(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS,
           widths: Sequence[int] = WIDTHS, limit: int = 30) -> str:  # fmt: skip
    """Rows as text; the last ``limit`` ones, long cells wrapped."""
    lines = [_line(columns, widths), "  ".join("-" * w for w in widths)]
    if len(rows) > limit:
        lines.append(f"({len(rows) - limit} earlier rows)")
    for row in rows[-limit:]:
        cells = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for i in range(max(len(c) for c in cells)):
            lines.append(_line([c[i] if i < len(c) else "" for c in cells], widths))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def _wrap(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split(" "):
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line or not lines else lines
