"""The two ends of a link, as attach describes them: source, target, or the coordinator of transactions.

Owns: the declarations of part 3.5 and 4.5. What an address means is for the program that uses the engine.
"""

from __future__ import annotations

from twinbus.amqp.composite import ANY, BOOLEAN, FIELDS, SYMBOL, SYMBOLS, UINT, Composite, composite, typed_field


@composite(0x28, "amqp:source:list")
class Source(Composite):
    """Where messages come from."""

    address: object = typed_field(ANY, default=None)
    durable: int = typed_field(UINT, default=0)
    expiry_policy: str = typed_field(SYMBOL, default="session-end")
    timeout: int = typed_field(UINT, default=0)
    dynamic: bool = typed_field(BOOLEAN, default=False)
    dynamic_node_properties: dict[str, object] | None = typed_field(FIELDS, default=None)
    distribution_mode: str | None = typed_field(SYMBOL, default=None)
    filter: dict[str, object] | None = typed_field(FIELDS, default=None)
    default_outcome: object = typed_field(ANY, default=None)
    outcomes: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
    capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)


@composite(0x29, "amqp:target:list")
class Target(Composite):
    """Where messages go."""

    address: object = typed_field(ANY, default=None)
    durable: int = typed_field(UINT, default=0)
    expiry_policy: str = typed_field(SYMBOL, default="session-end")
    timeout: int = typed_field(UINT, default=0)
    dynamic: bool = typed_field(BOOLEAN, default=False)
    dynamic_node_properties: dict[str, object] | None = typed_field(FIELDS, default=None)
    capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)


@composite(0x30, "amqp:coordinator:list")
class Coordinator(Composite):
    """The target of a link that opens and closes transactions."""

    capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
