"""An invalid Config.json is refused with exit code 2 and one line: the file, the key and the reason."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from twinbus.cli.main import app
from twinbus.server.config.file import read_config

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE: Any = json.loads(Path(__file__).with_name("emulator_sample.json").read_text())
NAMESPACE = "UserConfig.Namespaces[0]"
QUEUE = f"{NAMESPACE}.Queues[0]"
SUBSCRIPTION = f"{NAMESPACE}.Topics[0].Subscriptions[3]"
RULE = f"{SUBSCRIPTION}.Rules[0]"
SQL = {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}}}


def refusal(tmp_path: Path, content: str, *arguments: str) -> str:
    """Start a server with an invalid file, and return its error line without the name of the file."""
    file = tmp_path / "Config.json"
    file.write_text(content)
    result = CliRunner().invoke(app, ["serve", *arguments, f"--config={file}", f"--data={tmp_path / 'data'}"])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "data").exists()
    start = f"twinbus serve: {file}: "
    (line,) = result.stderr.splitlines()
    assert line.startswith(start)
    return line.removeprefix(start)


def namespace(config: Any) -> Any:  # noqa: ANN401  # JSON
    return config["UserConfig"]["Namespaces"][0]


def queue(**properties: object) -> Callable[[Any], object]:
    return lambda config: namespace(config)["Queues"][0]["Properties"].update(properties)


def subscription(**properties: object) -> Callable[[Any], object]:
    return lambda config: namespace(config)["Topics"][0]["Subscriptions"][3]["Properties"].update(properties)


def rule(**properties: object) -> Callable[[Any], object]:
    rules = "Rules"
    return lambda config: namespace(config)["Topics"][0]["Subscriptions"][3][rules][0]["Properties"].update(properties)


def more_queues(*queues: object) -> Callable[[Any], object]:
    return lambda config: namespace(config)["Queues"].extend(queues)


def more_rules(*rules: object) -> Callable[[Any], object]:
    return lambda config: namespace(config)["Topics"][0]["Subscriptions"][3]["Rules"].extend(rules)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        # Keys.
        (lambda config: config.update(Colour=1), "Colour: unknown key: use one of $schema, UserConfig"),
        (queue(Lockduration="PT1M"), f"{QUEUE}.Properties.Lockduration: unknown key: did you mean LockDuration?"),
        (
            subscription(RequiresDuplicateDetection=True),
            f"{SUBSCRIPTION}.Properties.RequiresDuplicateDetection: unknown",
        ),
        (lambda config: config.pop("UserConfig"), "UserConfig: is missing"),
        (lambda config: namespace(config).pop("Name"), f"{NAMESPACE}.Name: is missing"),
        (more_queues({"Properties": {}}), f"{NAMESPACE}.Queues[1].Name: is missing"),
        (more_rules({"Name": "r"}), f"{SUBSCRIPTION}.Rules[1].Properties: is missing"),
        (more_rules({"Name": "r", "Properties": {}}), f"{SUBSCRIPTION}.Rules[1].Properties.FilterType: is missing"),
        (
            more_queues({"Name": "q", "Pro perties": {}}),
            f'{NAMESPACE}.Queues[1]["Pro perties"]: unknown key: did you mean Properties?',
        ),
        # Types.
        (
            queue(MaxDeliveryCount="3"),
            f"{QUEUE}.Properties.MaxDeliveryCount: expected a whole number, found the string '3'",
        ),
        (queue(MaxDeliveryCount=True), f"{QUEUE}.Properties.MaxDeliveryCount: expected a whole number, found true"),
        (queue(RequiresSession=1), f"{QUEUE}.Properties.RequiresSession: expected true or false, found the number 1"),
        (queue(ForwardTo=["q"]), f"{QUEUE}.Properties.ForwardTo: expected a string, found a list"),
        (
            queue(LockDuration=60),
            f"{QUEUE}.Properties.LockDuration: expected a duration such as PT1M, found the number",
        ),
        (more_queues("q"), f"{NAMESPACE}.Queues[1]: expected a table of keys and values, found the string 'q'"),
        (lambda config: namespace(config).update(Queues={}), f"{NAMESPACE}.Queues: expected a list, found a table"),
        (lambda config: config["UserConfig"]["Logging"].update(Type="Disk"), "UserConfig.Logging.Type: 'Disk': it can"),
        # Values.
        (queue(LockDuration="1 minute"), f"{QUEUE}.Properties.LockDuration: '1 minute': it has to be an ISO 8601"),
        (queue(LockDuration="PT0S"), f"{QUEUE}.Properties.LockDuration: 'PT0S': it has to be a duration above zero"),
        (queue(LockDuration="PT6M"), f"{QUEUE}.Properties.LockDuration: PT6M: it can be PT5S to PT5M"),
        (queue(MaxDeliveryCount=0), f"{QUEUE}.Properties.MaxDeliveryCount: max_delivery_count is 0; it can be 1 to"),
        # Names.
        (lambda config: namespace(config).update(Name="a b"), f"{NAMESPACE}.Name: 'a b': a namespace name has"),
        (more_queues({"Name": "a b"}), f"{NAMESPACE}.Queues[1].Name: 'a b' is not a valid path: use letters,"),
        (
            more_queues({"Name": "QUEUE.1"}),
            f"{NAMESPACE}.Queues[1].Name: 'QUEUE.1' is already the name at {QUEUE}.Name",
        ),
        (
            more_queues({"Name": "topic.1"}),
            f"{NAMESPACE}.Topics[0].Name: 'topic.1' is already the name at {NAMESPACE}.Queues[1]",
        ),
        (
            lambda config: namespace(config)["Topics"][0]["Subscriptions"].append({"Name": "subscription.4"}),
            f"{NAMESPACE}.Topics[0].Subscriptions[4].Name: 'topic.1/Subscriptions/subscription.4' is already",
        ),
        (
            lambda config: namespace(config)["Topics"][0]["Subscriptions"].append({"Name": "a/b"}),
            f"{NAMESPACE}.Topics[0].Subscriptions[4].Name: 'a/b' is not a valid subscription name",
        ),
        (
            more_rules(SQL, SQL),
            f"{SUBSCRIPTION}.Rules[2].Name: 'r' is already the name at {SUBSCRIPTION}.Rules[1].Name",
        ),
        (more_rules({**SQL, "Name": "a b"}), f"{SUBSCRIPTION}.Rules[1].Name: 'a b' is not a valid rule name"),
        # Filters.
        (rule(FilterType="True"), f"{RULE}.Properties.FilterType: 'True': it can be Sql, Correlation"),
        (
            rule(SqlFilter={"SqlExpression": "a = 1 AND"}),
            f"{RULE}.Properties.SqlFilter.SqlExpression: the filter is wrong at line 1, column 10: ",
        ),
        (
            rule(Action={"SqlExpression": "SET\n a 1"}),
            f"{RULE}.Properties.Action.SqlExpression: the action is wrong at line 2, column 4: ",
        ),
        (rule(SqlFilter={}), f"{RULE}.Properties.SqlFilter.SqlExpression: is missing"),
        (rule(FilterType="Correlation"), f"{RULE}.Properties.SqlFilter: does not fit FilterType Correlation"),
        (
            rule(FilterType="Correlation", SqlFilter=None, CorrelationFilter={}),
            f"{RULE}.Properties.CorrelationFilter: has no condition",
        ),
        (
            rule(FilterType="Correlation", SqlFilter=None, CorrelationFilter={"Properties": {"a b": []}}),
            f'{RULE}.Properties.CorrelationFilter.Properties["a b"]: expected a string, a number, a time, true or',
        ),
        (
            rule(FilterType="Correlation", SqlFilter=None, CorrelationFilter={"Properties": {"a": 2**63}}),
            f"{RULE}.Properties.CorrelationFilter: the property 'a' is '9223372036854775808', not a valid long",
        ),
        # Namespaces.
        (
            lambda config: config["UserConfig"]["Namespaces"].clear(),
            "UserConfig.Namespaces: at least one namespace is required",
        ),
        (
            lambda config: config["UserConfig"]["Namespaces"].append({"Name": "other"}),
            "UserConfig.Namespaces: there are 2 (sbemulatorns, other), but a server serves one: give its name as NAME",
        ),
    ],
)
def test_the_error_names_the_key_and_the_reason(tmp_path: Path, change: Callable[[Any], object], line: str) -> None:
    config = copy.deepcopy(SAMPLE)
    change(config)
    assert refusal(tmp_path, json.dumps(config)).startswith(line)


def test_a_namespace_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, json.dumps(SAMPLE), "contoso")
    assert line == "UserConfig.Namespaces: there is no namespace 'contoso'; there is sbemulatorns"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "line 1, column 1: Expecting value"),
        ('{\n  "UserConfig": {,}\n}', "line 2, column 18: Expecting property name enclosed in double quotes"),
        ('{"UserConfig": {}} x', "line 1, column 20: Extra data"),
        ('{"UserConfig": {}, "UserConfig": {}}', "an object has the key 'UserConfig' twice"),
        ("[]", "expected a table of keys and values, found a list"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_an_error_in_json_names_the_line_and_column(tmp_path: Path, content: str, line: str) -> None:
    assert refusal(tmp_path, content) == line


def test_a_missing_file_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    for name, reason in (
        ("none.json", "cannot be read: No such file or directory"),
        ("config.yaml", "must be a .json file of Microsoft's emulator or a .toml file of twinbus"),
    ):
        result = CliRunner().invoke(app, ["serve", f"--config={tmp_path / name}", "--data=d"])
        assert (result.exit_code, result.stderr) == (2, f"twinbus serve: {tmp_path / name}: {reason}\n")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"\xe9": 1}')
    result = CliRunner().invoke(app, ["serve", f"--config={latin}", "--data=d"])
    assert (result.exit_code, result.stderr) == (2, f"twinbus serve: {latin}: is not UTF-8 (byte 2)\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org", "::"])  # noqa: S104  # refused
def test_the_emulator_key_requires_a_loopback_address(tmp_path: Path, host: str) -> None:
    result = CliRunner().invoke(app, ["serve", "contoso", f"--data={tmp_path}", f"--host={host}", "--emulator-key"])
    reason = "must be a loopback address with --emulator-key, whose key is publicly known"
    assert (result.exit_code, result.stderr) == (2, f"twinbus serve: --host {host}: {reason}\n")


def test_an_entity_that_the_namespace_refuses_is_reported_with_its_key(tmp_path: Path) -> None:
    config = copy.deepcopy(SAMPLE)
    queue(ForwardTo="nowhere")(config)
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(config))
    ports = [f"--{name}-port=0" for name in ("amqp", "amqps", "http", "https")]
    command = [sys.executable, "-m", "twinbus", "serve", f"--config={file}", f"--data={tmp_path / 'data'}", *ports]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    line = f"{file}: {QUEUE}.Properties.ForwardTo: there is no queue or topic 'nowhere', neither in the file nor in the"
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"twinbus serve: {line}")


@pytest.mark.parametrize("name", ["sbemulatorns", "other", "OTHER"])
def test_the_name_argument_selects_one_of_several_namespaces(tmp_path: Path, name: str) -> None:
    config = copy.deepcopy(SAMPLE)
    config["UserConfig"]["Namespaces"].append({"Name": "other", "Queues": [{"Name": "only"}]})
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(config))
    settings = read_config(file, name)
    assert settings["name"] == name.lower()
    assert len(settings["plan"].entities) == (6 if name == "sbemulatorns" else 1)
