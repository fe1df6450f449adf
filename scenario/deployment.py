"""How a connector is deployed on real engines: its config, its environment, its router's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Topology = Literal["pd", "store"]
TOPOLOGIES: tuple[Topology, ...] = ("pd", "store")

PREFILL, DECODE = "prefill", "decode"
WRITER, READER = "writer", "reader"
ENGINES = (PREFILL, DECODE, WRITER, READER)
"""What the engines of the two topologies are called."""


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Deployment:
    """A connector class, and what two processes have to be told to use it together.

    Strings in ``extra``, ``config``, ``env``, ``dialect`` and ``service`` may hold placeholders:
    ``{run_dir}`` (a fresh folder), ``{run}`` (a name of its own), ``{token}`` (a secret of its
    own), ``{port:NAME}`` (a TCP port that is NAME's, an engine or ``store``), ``{port}`` (that of
    the engine that is told), ``{id:NAME}`` (an engine's ``engine_id``, another one after each
    start), ``{engine}`` (the name of the one that is told), ``{role}`` (its ``kv_role``), and, in
    ``dialect``, ``{transfer}`` (a name for each request). ``{tp}`` and ``{store_blocks}`` are
    numbers.

    Attributes:
        name: what the user called it.
        cls: ``package.module:Class``.
        topologies: those that it can be tried in.
        roles: ``kv_role`` by engine (``prefill``, ``decode``, ``writer``, ``reader``); ``kv_both``
            where nothing is said.
        extra: ``kv_connector_extra_config`` of every engine.
        extra_of: more of it, by topology or by engine.
        config: other fields of vLLM's ``KVTransferConfig``.
        env: environment variables of every engine.
        dialect: see :class:`kvconform.scenario.target.Target`. The values are those of a request.
        service: a command that runs beside the engines of a store, after ``sys.executable``.
        service_env: its environment variables.
        prepare: ``package.module:function``, called in an engine's process before the connector's
            class is imported.
        modules: what it imports and vLLM does not bring.
        libraries: system libraries that these need, by file name, with the Debian package.
        lease: seconds after which the connector itself gives up what nobody fetches.
        patience: seconds in which every request has to end, whatever happens to the other side.
    """

    name: str
    cls: str
    topologies: tuple[Topology, ...] = TOPOLOGIES
    roles: Mapping[str, str] = field(default_factory=_nothing)
    extra: Mapping[str, Any] = field(default_factory=_nothing)
    extra_of: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    config: Mapping[str, Any] = field(default_factory=_nothing)
    env: Mapping[str, str] = field(default_factory=_nothing)
    dialect: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing)
    service: tuple[str, ...] = ()
    service_env: Mapping[str, str] = field(default_factory=_nothing)
    prepare: str = ""
    modules: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=_nothing)
    lease: float = 30.0
    patience: float = 60.0

    def transfer_config(
        self, engine: str, topology: Topology, policy: str, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The fields of vLLM's ``KVTransferConfig`` for one engine.

        Args:
            engine: its name.
            topology: what it is a part of.
            policy: ``kv_load_failure_policy``.
            values: for the placeholders, by name.
        """
        module, _, name = self.cls.partition(":")
        told = self.told(engine, values)
        extra = {**self.extra, **self.extra_of.get(topology, {}), **self.extra_of.get(engine, {})}
        return {
            "kv_connector": name,
            "kv_connector_module_path": module,
            "kv_role": told["role"],
            "engine_id": values[f"id:{engine}"],
            "kv_load_failure_policy": policy,
            **filled(self.config, told),
            "kv_connector_extra_config": filled(extra, told),
        }

    def told(self, engine: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values``, and what is this engine's own."""
        role = self.roles.get(engine, "kv_both")
        return {**values, "engine": engine, "role": role, "port": values[f"port:{engine}"]}


_PLACEHOLDER = re.compile(r"\{([a-z_]+(?::[a-z]+)?)\}")


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """``value`` with its placeholders filled in; one that is a whole string keeps its type.

    What has no value stays as it is. Tuples become lists, as in JSON.
    """
    if isinstance(value, Mapping):
        return {key: filled(item, values) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [filled(item, values) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole and whole[1] in values:
        return values[whole[1]]
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), value)
