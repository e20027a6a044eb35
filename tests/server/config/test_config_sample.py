"""`twinbus config sample` prints a valid file with every setting and its default."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.server.config.applied_config import apply_config
from twinbus.cli.main import app
from twinbus.model.entity_file import emulator
from twinbus.model.entity_file import toml as entity_toml
from twinbus.model.entity_file.keys import SECRET_KEYS
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.config import toml
from twinbus.server.config.file import read_config
from twinbus.server.config.settings import ServeSettings

NOT_IN_A_FILE = {"sync", "emulator_key", "keys", "plan", "limits"}
"""Settings without a key: the first two are command-line options only, the others are tables."""


@pytest.fixture(scope="module")
def sample() -> str:
    result = CliRunner().invoke(app, ["config", "sample"])
    assert result.exit_code == 0
    return result.stdout


def uncommented(sample: str) -> str:
    """Enable the settings without a default: lines with a # that no blank follows."""
    return re.sub(r"^#(?=[\[a-z])", "", sample, flags=re.MULTILINE)


def test_every_setting_of_a_server_can_be_in_a_file() -> None:
    assert {field for field, _ in toml.SETTING_READERS.values()} == {
        field.name for field in fields(ServeSettings) if field.name not in NOT_IN_A_FILE
    }


def test_every_setting_is_in_the_sample_with_its_default(sample: str, tmp_path: Path) -> None:
    assert set(toml.SETTING_READERS) <= set(tomllib.loads(uncommented(sample)))
    written = tomllib.loads(sample)
    settings = settings_of(sample, tmp_path)
    for key, (name, _) in toml.SETTING_READERS.items():
        default = {field.name: field.default for field in fields(ServeSettings)}[name]
        if default is MISSING:
            assert key in {"name", "data"}
        elif default is None:
            assert key not in written
        else:
            assert settings[name] == default, key


def test_every_limit_is_in_the_sample_with_its_default(sample: str, tmp_path: Path) -> None:
    assert list(tomllib.loads(sample)["limits"]) == [field.name for field in fields(NamespaceLimits)]
    assert settings_of(sample, tmp_path)["limits"] == NamespaceLimits()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("orders", QueueDescription),
        ("events", TopicDescription),
        ("events/Subscriptions/all", SubscriptionDescription),
    ],
)
def test_every_property_is_in_the_sample_with_its_default(sample: str, tmp_path: Path, path: str, kind: type) -> None:
    (planned,) = [entity for entity in settings_of(sample, tmp_path)["plan"].entities if entity.path == path]
    defaults = {field.name: field.default for field in fields(kind) if field.name != "authorization_rules"}
    assert planned.properties.values == defaults


async def test_a_server_starts_with_the_sample(sample: str, tmp_path: Path) -> None:
    entities = await apply_config(tmp_path, "twinbus.toml", sample)
    assert set(entities) == {"orders", "events", "events/Subscriptions/all", "events/Subscriptions/urgent"}
    assert set(entities["events/Subscriptions/urgent"].rules) == {"by-expression", "by-values"}


def test_the_sample_is_also_valid_with_the_settings_that_have_no_default(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLICATION_KEY", "bG9uZy1lbm91Z2gtc2VjcmV0")
    monkeypatch.setenv("ORDERS_SENDER_KEY", "bG9uZy1lbm91Z2gtc2VjcmV0")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "application").write_text("b3RoZXItc2VjcmV0LW90aGVy\n")
    settings = settings_of(uncommented(sample), tmp_path)
    ServeSettings(**settings)
    assert [key.name for key in settings["keys"]] == ["application"]
    assert [rule.name for rule in settings["plan"].entities[0].properties.values["authorization_rules"]] == ["sender"]


def test_every_key_of_secrets_and_rules_is_in_the_sample(sample: str) -> None:
    for key in (*SECRET_KEYS, *entity_toml.CORRELATION_KEYS, *entity_toml.RULE_KEYS):
        assert key in sample


def test_the_configuration_page_documents_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    kinds = (QueueDescription, TopicDescription, SubscriptionDescription)
    properties = {key for kind in kinds for key in entity_toml.entity_keys(kind)}
    for key in (
        *toml.SETTING_READERS,
        *properties,
        *SECRET_KEYS,
        *entity_toml.CORRELATION_KEYS,
        *entity_toml.RULE_KEYS,
    ):
        assert f"`{key}`" in page, key
    for limit in fields(NamespaceLimits):
        assert f"| `{limit.name}` | {limit.default} |" in page
    for key in (*emulator.QUEUE_KEYS, *emulator.CORRELATION_KEYS, *emulator.FILTER_KEYS):
        assert f"`{key}`" in page, key


def settings_of(content: str, folder: Path) -> dict[str, Any]:
    file = folder / "sample.toml"
    file.write_text(content)
    return read_config(file, None)
