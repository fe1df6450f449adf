"""The members of the zoo, as data. Whoever lists them needs no vLLM."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from kvconform.connectors.zoo.mutant import Mutant

_FILE = "catalogue.toml"


def _mutant(name: str, entry: dict[str, Any]) -> Mutant:
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return Mutant(name, **{**entry, **lists})


def _read() -> tuple[Mutant, ...]:
    data = tomllib.loads((files(__package__) / _FILE).read_text(encoding="utf-8"))
    return tuple(_mutant(name, entry) for name, entry in data.items())


MUTANTS = _read()

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
