"""The two ends of a link, as attach describes them: source, target, or the coordinator of transactions.

Owns: the declarations of part 3.5 and 4.5. What an address means is for the program that uses the engine.
"""

from __future__ import annotations

from twinbus.amqp.composite import ANY, BOOLEAN, FIELDS, SYMBOL, SYMBOLS, UINT, Composite, composite, of


@composite(0x28, "amqp:source:list")
class Source(Composite):
    """Where messages come from."""

    address: object = of(ANY, default=None)
    durable: int = of(UINT, default=0)
    expiry_policy: str = of(SYMBOL, default="session-end")
    timeout: int = of(UINT, default=0)
    dynamic: bool = of(BOOLEAN, default=False)
    dynamic_node_properties: dict[str, object] | None = of(FIELDS, default=None)
    distribution_mode: str | None = of(SYMBOL, default=None)
    filter: dict[str, object] | None = of(FIELDS, default=None)
    default_outcome: object = of(ANY, default=None)
    outcomes: tuple[str, ...] | None = of(SYMBOLS, default=None)
    capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)


@composite(0x29, "amqp:target:list")
class Target(Composite):
    """Where messages go."""

    address: object = of(ANY, default=None)
    durable: int = of(UINT, default=0)
    expiry_policy: str = of(SYMBOL, default="session-end")
    timeout: int = of(UINT, default=0)
    dynamic: bool = of(BOOLEAN, default=False)
    dynamic_node_properties: dict[str, object] | None = of(FIELDS, default=None)
    capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)


@composite(0x30, "amqp:coordinator:list")
class Coordinator(Composite):
    """The target of a link that opens and closes transactions."""

    capabilities: tuple[str, ...] | None = of(SYMBOLS, default=None)
