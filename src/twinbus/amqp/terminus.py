"""Ends of a link as attach describes them: source, target, or the transaction coordinator.

Owns the declarations of parts 3.5 and 4.5. Must not know what an address means; the program interprets addresses.
"""

from __future__ import annotations

from twinbus.amqp.codec.composite import ANY, BOOLEAN, FIELDS, SYMBOL, SYMBOLS, UINT, Composite, composite, typed_field


@composite(0x28, "amqp:source:list")
class Source(Composite):
    """Source of a link: the node that messages come from."""

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
    """Target of a link: the node that messages go to."""

    address: object = typed_field(ANY, default=None)
    durable: int = typed_field(UINT, default=0)
    expiry_policy: str = typed_field(SYMBOL, default="session-end")
    timeout: int = typed_field(UINT, default=0)
    dynamic: bool = typed_field(BOOLEAN, default=False)
    dynamic_node_properties: dict[str, object] | None = typed_field(FIELDS, default=None)
    capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)


@composite(0x30, "amqp:coordinator:list")
class Coordinator(Composite):
    """Target of a link that declares and discharges transactions."""

    capabilities: tuple[str, ...] | None = typed_field(SYMBOLS, default=None)
