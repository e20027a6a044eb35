"""TOML files: settings, keys and entities; options take precedence over the file; errors name the key and reason."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.server.config.applied_config import apply_config, emulator_config
from twinbus.cli.main import app
from twinbus.model.limits import NamespaceLimits
from twinbus.model.rule import SqlAction, SqlFilter, TrueFilter, Value
from twinbus.server.auth.keys import Key, Right
from twinbus.server.config.file import read_config
from twinbus.server.config.settings import ServeSettings

if TYPE_CHECKING:
    from typer.testing import Result

FILE = "twinbus.toml"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """The settings that a server would be started with. No server is started."""
    started: list[ServeSettings] = []

    def run(settings: ServeSettings, _announce: object, _reread: object) -> int:
        started.append(settings)
        return 0

    module = ModuleType("twinbus.server.runtime.process")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twinbus.server.runtime.process", module)
    return started


def serve(folder: Path, content: str, *arguments: str, mode: int = 0o644) -> Result:
    file = folder / FILE
    file.write_text(content)
    file.chmod(mode)
    return CliRunner().invoke(app, ["serve", *arguments, f"--config={file}"])


def started_settings(
    started: list[ServeSettings], folder: Path, content: str, *arguments: str, mode: int = 0o644
) -> ServeSettings:
    result = serve(folder, content, *arguments, mode=mode)
    assert (result.exit_code, result.stderr) == (0, "")
    return replace(started.pop(), plan=None)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_only_the_name_and_the_data_directory_are_required(settings: list[ServeSettings], tmp_path: Path) -> None:
    expected = ServeSettings(name="contoso", data=tmp_path / "data")
    assert started_settings(settings, tmp_path, 'name = "contoso"\ndata = "data"') == expected


def test_every_setting_reaches_the_server(settings: list[ServeSettings], tmp_path: Path) -> None:
    content = """
        name = "contoso"
        data = "/data"
        host = "::1"
        amqp_port = 1
        amqps_port = "none"
        http_port = 3
        https_port = 0
        plaintext = ["http"]
        workers = 3
        worker_timeout = 7
        stores = 8
        store_dirs = ["a", "/b"]
        ready_file = "r"
        min_free = "500MB"
        store_timeout = 2
        max_connections = 7
        max_unauthenticated = 6
        link_idle = 1.5
        token_timeout = 2.5
        tls_cert = "c"
        tls_key = "/k"
        log_level = "debug"
        log_format = "json"
        measure_pauses = true
        metering = false
        usage_days = 30
        limits = { max_message_bytes = 1000000, max_locks = 5 }
    """
    assert started_settings(settings, tmp_path, content) == ServeSettings(
        name="contoso",
        data=Path("/data"),
        host="::1",
        amqp_port=1,
        amqps_port=None,
        http_port=3,
        https_port=0,
        plaintext=("http",),
        workers=3,
        worker_timeout_s=7.0,
        stores=8,
        store_dirs=(tmp_path / "a", Path("/b")),
        ready_file=tmp_path / "r",
        min_free_bytes=500_000_000,
        store_timeout_s=2.0,
        max_connections=7,
        max_unauthenticated=6,
        link_idle_s=1.5,
        token_timeout_s=2.5,
        tls_cert=tmp_path / "c",
        tls_key=Path("/k"),
        log_level="debug",
        log_format="json",
        measure_pauses=True,
        metering=False,
        usage_days=30,
        limits=NamespaceLimits(max_message_bytes=1_000_000, max_locks=5),
    )


def test_options_take_precedence_over_the_file(settings: list[ServeSettings], tmp_path: Path) -> None:
    content = 'name = "contoso"\ndata = "data"\namqp_port = 1\nstores = 2\nmin_free = "1MB"\nlog_level = "error"'
    options = ("other", "--data=d", "--amqp-port=5672", "--min-free=1GiB", "--store-dir=s")
    effective = started_settings(settings, tmp_path, content, *options)
    assert (effective.name, effective.data, effective.amqp_port, effective.min_free_bytes) == (
        "other",
        Path("d"),
        5672,
        2**30,
    )
    assert (effective.stores, effective.log_level, effective.store_dirs) == (2, "error", (Path("s"),))


def test_a_setting_in_neither_the_file_nor_an_option_is_reported_missing(tmp_path: Path) -> None:
    result = serve(tmp_path, 'data = "d"')
    assert (result.exit_code, result.stderr[:31]) == (2, "twinbus serve: NAME is missing:")
    result = serve(tmp_path, 'name = "contoso"')
    assert (result.exit_code, result.stderr[:33]) == (2, "twinbus serve: --data is missing:")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_reads_its_secret_from_a_file_or_the_environment(
    settings: list[ServeSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret-from-file\n")
    monkeypatch.setenv("TWINBUS_TEST_SECRET", "from-environment")
    content = """
        name = "contoso"
        data = "data"
        [[keys]]
        name = "sender"
        rights = ["Send"]
        secret_file = "secret"
        secondary_secret_env = "TWINBUS_TEST_SECRET"
    """
    effective = started_settings(settings, tmp_path, content)
    assert effective.keys == (Key("sender", "secret-from-file", "from-environment", frozenset({Right.SEND})),)


def test_a_secret_in_the_file_is_refused_if_other_users_may_read_the_file(
    settings: list[ServeSettings], tmp_path: Path
) -> None:
    content = """
        name = "contoso"
        data = "data"
        [[keys]]
        name = "all"
        rights = ["Manage", "Send", "Listen"]
        secret = "very-very-secret"
    """
    assert started_settings(settings, tmp_path, content, mode=0o600).keys == (
        Key("all", "very-very-secret", "very-very-secret"),
    )
    result = serve(tmp_path, content, mode=0o640)
    assert result.exit_code == 2
    assert "keys[0].secret: a secret is not allowed in a file that other users may read" in result.stderr
    assert "very-secret" not in result.output


# --- entities ---------------------------------------------------------------------------------------------------------


async def test_a_toml_file_and_the_equivalent_emulator_file_give_the_same_entities(tmp_path: Path) -> None:
    content = """
        name = "sbemulatorns"
        [[queues]]
        name = "orders"
        lock_duration = "PT30S"
        max_delivery_count = 5
        dead_lettering_on_expiration = true
        forward_dead_lettered_to = "events"

        [[topics]]
        name = "events"
        default_time_to_live = "PT1H"
        requires_duplicate_detection = true
        [[topics.subscriptions]]
        name = "all"
        [[topics.subscriptions]]
        name = "some"
        requires_session = true
        rules = [{ name = "one", sql = "a = 1", action = "SET b = 2" }, { name = "two", correlation = { to = "me" } }]
    """
    rules = [
        {
            "Name": "one",
            "Properties": {
                "FilterType": "Sql",
                "SqlFilter": {"SqlExpression": "a = 1"},
                "Action": {"SqlExpression": "SET b = 2"},
            },
        },
        {"Name": "two", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"To": "me"}}},
    ]
    queue = {
        "LockDuration": "PT30S",
        "MaxDeliveryCount": 5,
        "DeadLetteringOnMessageExpiration": True,
        "ForwardDeadLetteredMessagesTo": "events",
    }
    topic = {
        "Name": "events",
        "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": True},
        "Subscriptions": [{"Name": "all"}, {"Name": "some", "Properties": {"RequiresSession": True}, "Rules": rules}],
    }
    equivalent = emulator_config(queues=[{"Name": "orders", "Properties": queue}], topics=[topic])
    entities = await apply_config(tmp_path, FILE, content)
    assert await apply_config(tmp_path, "Config.json", equivalent) == entities
    assert set(entities) == {"orders", "events", "events/Subscriptions/all", "events/Subscriptions/some"}


async def test_a_rule_may_have_parameters_or_only_a_name(tmp_path: Path) -> None:
    content = """
        [[topics]]
        name = "events"
        [[topics.subscriptions]]
        name = "some"
        [[topics.subscriptions.rules]]
        name = "since"
        sql = "at > @since"
        parameters = { "@since" = 2026-01-01T00:00:00Z }
        action = "SET by = @who"
        action_parameters = { "@who" = "me" }
        [[topics.subscriptions.rules]]
        name = "every"
    """
    rules = (await apply_config(tmp_path, FILE, content))["events/Subscriptions/some"].rules
    since = Value("dateTime", "2026-01-01T00:00:00+00:00")
    assert rules["since"].filter == SqlFilter(expression="at > @since", parameters={"@since": since})
    assert rules["since"].action == SqlAction(expression="SET by = @who", parameters={"@who": Value("string", "me")})
    assert rules["every"].filter == TrueFilter()


async def test_an_entity_has_exactly_the_keys_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_TEST_SECRET", "sixteen-or-more.")
    rule = '{ name = "%s", rights = ["%s"], secret_env = "TWINBUS_TEST_SECRET" }'
    content = '[[queues]]\nname = "orders"\nauthorization_rules = [%s]'
    first = await apply_config(tmp_path, FILE, content % f"{rule % ('sender', 'Send')}, {rule % ('old', 'Send')}")
    assert [rule.name for rule in first["orders"].description.authorization_rules] == ["sender", "old"]
    assert first["orders"].description.authorization_rules[0].created_ms > 0
    changed = content % f"{rule % ('sender', 'Send')}, {rule % ('new', 'Listen')}"
    second = await apply_config(tmp_path, FILE, changed)
    assert [rule.name for rule in second["orders"].description.authorization_rules] == ["sender", "new"]
    assert second["orders"].description.authorization_rules[0] == first["orders"].description.authorization_rules[0]
    assert await apply_config(tmp_path, FILE, changed) == second
    assert await apply_config(tmp_path, FILE, '[[queues]]\nname = "orders"') == second


# --- refusals ---------------------------------------------------------------------------------------------------------

KEY = '[[keys]]\nname = "a"\nrights = ["Send"]\n'
QUEUE = '[[queues]]\nname = "orders"\n'
RULE = '[[topics]]\nname = "t"\n[[topics.subscriptions]]\nname = "s"\n[[topics.subscriptions.rules]]\nname = "r"\n'
AT_RULE = "topics[0].subscriptions[0].rules[0]"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("amqp_prt = 1", "amqp_prt: unknown key: did you mean amqp_port?"),
        ("sync = false", "sync: unknown key: use one of name, data, host,"),
        ('amqp_port = "5672"', "amqp_port: expected a whole number, found the string '5672'"),
        ("amqp_port = 70000", "amqp_port: 70000: it can be 0 to 65535"),
        ("amqp_port = 5300", "http_port: 5300: is already used by amqp_port"),
        ("stores = 0", "stores: 0: it can be 1 to 64"),
        ("workers = 65", "workers: 65: it can be 1 to 64"),
        ("stores = 4\nworkers = 5", "workers: 5: each worker needs a store of its own, but stores is 4"),
        ('name = "a b"', "name: 'a b': a namespace name has"),
        ('min_free = "lots"', "min_free: 'lots': is not a size"),
        ("min_free = 5", "min_free: expected a string, found the number 5"),
        ("store_timeout = false", "store_timeout: expected a number, found false"),
        ('log_level = "loud"', "log_level: 'loud': it can be debug, info, warning, error"),
        ('tls_cert = "/c"', "tls_cert: /c: needs tls_key too"),
        ("store_dirs = [1]", "store_dirs[0]: expected a string, found the number 1"),
        ("data = 1979-05-27", "data: expected a string, found 1979-05-27"),
        ("[limits]\nmax_lock = 1", "limits.max_lock: unknown key: did you mean max_locks?"),
        ("[limits]\nmax_locks = 0", "limits.max_locks: 0: it can be 1 or more"),
        ("limits = 5", "limits: expected a table of keys and values, found the number 5"),
        ("name = \n", "Invalid value (at line 1, column 8)"),
        (KEY, "keys[0].secret: is missing: set secret, secret_file or secret_env"),
        (KEY + 'secret_env = "TWINBUS_NO_SUCH"', "keys[0].secret_env: there is no environment variable 'TWINBUS_NO_SU"),
        (KEY + 'secret_file = "none"', "keys[0].secret_file: "),
        (KEY + 'secret_file = "x"\nsecret_env = "y"', "keys[0].secret_env: secret_file is set too: set only one"),
        ('[[keys]]\nname = "a"\nrights = ["Sing"]', "keys[0].rights[0]: 'Sing': it can be Manage, Send, Listen"),
        (
            '[[keys]]\nname = "a"\nrights = ["Manage"]\nsecret_env = "PATH_1"',
            "keys[0]: key 'a' has Manage, which requires",
        ),
        (KEY + 'secret_env = "PATH_2"', "keys[0]: a secret of key 'a' is not 1 to 256 characters of base64"),
        (KEY + 'secret_env = "PATH_3"', "keys[0]: a secret of key 'a' has 15 characters; it has to have 16 to 256"),
        (2 * (KEY + 'secret_env = "PATH_1"\n'), "keys[1].name: 'a' is already the name of another key"),
        (
            KEY.replace('"a"', '"RootManageSharedAccessKey"') + 'secret_env = "PATH_1"',
            "keys[0].name: 'RootManageSharedAccessKey' is the root key, which is in the data directory",
        ),
        (QUEUE + 'lock_duration = "PT1S"', "queues[0].lock_duration: PT1S: it can be PT5S to PT5M"),
        (QUEUE + "lock_duration_ms = 5", "queues[0].lock_duration_ms: unknown key: did you mean lock_duration?"),
        (QUEUE + 'status = "Busy"', "queues[0].status: status is 'Busy'; it can be Active, Disabled,"),
        (QUEUE + "max_size_mb = 1000", "queues[0].max_size_mb: max_size_mb is 1000; it can be 1024, 2048,"),
        (2 * QUEUE, "queues[1].name: 'orders' is already the name at queues[0].name"),
        (
            QUEUE + 2 * '[[queues.authorization_rules]]\nname = "a"\nrights = ["Send"]\nsecret_env = "PATH_1"\n',
            "queues[0].authorization_rules: two authorization rules are named 'a'",
        ),
        (RULE + 'sql = "a = "', f"{AT_RULE}.sql: the filter is wrong at line 1, column 5: "),
        (RULE + 'action = "SING"', f"{AT_RULE}.action: the action is wrong at line 1, column 1: "),
        (RULE + 'sql = "a = @b"', f"{AT_RULE}.sql: the filter is wrong at line 1, column 5: "),
        (
            RULE + 'sql = "1=1"\ncorrelation = { to = "b" }',
            f"{AT_RULE}.correlation: sql is set too: set only one of them",
        ),
        (RULE + "parameters = { a = 1 }", f"{AT_RULE}.parameters: needs sql, which is missing"),
        (RULE + "action_parameters = { a = 1 }", f"{AT_RULE}.action_parameters: needs action, which is missing"),
        (RULE + "correlation = { too = 1 }", f"{AT_RULE}.correlation.too: unknown key: did you mean to?"),
    ],
)
def test_the_error_names_the_key_and_the_reason(
    tmp_path: Path, content: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PATH_1", "bG9uZy1lbm91Z2gtc2VjcmV0")
    monkeypatch.setitem(os.environ, "PATH_2", "not a secret")
    monkeypatch.setitem(os.environ, "PATH_3", "fifteen-of-them")
    result = serve(tmp_path, content, "contoso", "--data=d")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"twinbus serve: {tmp_path / FILE}: {line}"), result.stderr
    assert "not a secret" not in result.stderr


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    config = read_config(tmp_path / FILE, None)
    assert (config["keys"], config["plan"].entities, set(config)) == ((), (), {"keys", "plan"})
