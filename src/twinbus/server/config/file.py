"""Reading a configuration file, whose suffix decides the format.

Owns: the choice of the format. `toml` reads settings, and `model.entity_file` reads entities in both formats (TOML,
emulator).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.broker.filters.rule import compile_rule
from twinbus.model.entity_file import emulator
from twinbus.model.entity_file.file import is_toml, parse_file
from twinbus.model.entity_file.section import InvalidConfig
from twinbus.server.config import toml
from twinbus.server.config.settings import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.model.rule import RuleDescription


def read_config(file: Path, name: str | None) -> dict[str, Any]:
    """Return the fields of ServeSettings that the file sets. Raise ConfigurationError if the file is invalid.

    `name` selects a namespace in an emulator file; None selects the only namespace.
    """
    try:
        content = parse_file(file)
        if is_toml(file):
            return toml.read(file, content)
        namespace_name, plan = emulator.read(file, content, name, compile_rule)
    except InvalidConfig as error:
        raise ConfigurationError(str(error)) from None
    return {"name": namespace_name, "plan": plan}


def check_rule(rule: RuleDescription) -> None:
    """Raise InvalidArgument if an expression of the rule is invalid."""
    compile_rule(rule)
