"""`twinbus entity export` and `import` copy entities to files and between namespaces, and delete only if asked to."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import invoke
from tests.support.server_process import run_server
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def running_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("target"), name="target") as target:
        yield target


@pytest.fixture
def target(running_target: ServerProcess) -> ServerProcess:
    """A namespace without entities."""
    Path("none.toml").touch()
    imported("none.toml", "--prune", "--yes", "--ready-file", str(running_target.ready_file))
    return running_target


def entity(*arguments: str) -> str:
    result = invoke("entity", *arguments)
    assert result.exit_code == 0, result.output
    return str(result.output)


def imported(*arguments: str) -> dict[str, str]:
    """What became of each entity."""
    content: dict[str, Any] = json.loads(entity("import", *arguments, "--json"))
    return {row["path"]: row["action"] for row in content["entities"]}


def exported(server: ServerProcess, *arguments: str) -> str:
    return entity("export", "--ready-file", str(server.ready_file), *arguments)


def create_entities(server: ServerProcess, name: str) -> None:
    for arguments in (
        ("queue", f"{name}/queue", "--lock-duration", "30s", "--forward-dead-letters-to", f"{name}/topic"),
        ("topic", f"{name}/topic", "--partitioned"),
        ("subscription", f"{name}/topic", "urgent", "--filter", "priority > 5", "--action", "SET seen = 1"),
    ):
        if arguments[0] == "queue":
            entity("create", *arguments[:-2], "--ready-file", str(server.ready_file))
            late = arguments
        else:
            entity("create", *arguments, "--ready-file", str(server.ready_file))
    entity("update", "queue", late[1], *late[-2:], "--ready-file", str(server.ready_file))


def test_a_namespace_is_copied_from_another_one_and_again_without_changes(
    server: ServerProcess, target: ServerProcess, name: str
) -> None:
    create_entities(server, name)
    source = ("--from-namespace", "--source-ready-file", str(server.ready_file), "--prefix", name)
    arguments = (*source, "--ready-file", str(target.ready_file))
    dry = entity("import", *arguments, "--dry-run")
    assert dry.endswith("Dry run, nothing was changed: 3 created.\n")
    assert exported(target) == 'name = "target"\n'
    assert set(imported(*arguments).values()) == {"created"}
    assert exported(target).replace("target", "contoso") == exported(server, "--prefix", name)
    assert entity("import", *arguments) == "3 unchanged.\n"


@pytest.mark.parametrize("file", ["entities.toml", "Config.json"])
def test_an_exported_file_is_imported_with_its_differences(
    file: str, server: ServerProcess, target: ServerProcess, name: str
) -> None:
    create_entities(server, name)
    assert exported(server, file, "--prefix", name).endswith(f"3 entities exported to {file}.\n")
    assert set(imported(file, "--ready-file", str(target.ready_file)).values()) == {"created"}
    Path(file).write_text(Path(file).read_text().replace("PT30S", "PT20S"))
    report = entity("import", file, "--ready-file", str(target.ready_file))
    assert report == (
        f"updated   queue {name}/queue\n          lock_duration: PT30S -> PT20S\n1 updated, 2 unchanged.\n"
    )


def test_only_prune_deletes_and_only_after_confirmation(target: ServerProcess, name: str) -> None:
    ready = ("--ready-file", str(target.ready_file))
    entity("create", "queue", f"{name}/other", *ready)
    Path("one.toml").write_text(f'[[queues]]\nname = "{name}/one"')
    assert imported("one.toml", *ready) == {f"{name}/one": "created"}
    refused = invoke("entity", "import", "one.toml", "--prune", *ready)
    assert refused.exit_code == EXIT_MISUSE
    assert "Delete 1 entity with their messages? There is no terminal to ask: confirm with --yes" in refused.output
    dry = imported("one.toml", "--prune", "--dry-run", *ready)
    assert dry == {f"{name}/one": "unchanged", f"{name}/other": "deleted"}
    assert f'"{name}/other"' in exported(target)
    assert imported("one.toml", "--prune", "--yes", *ready)[f"{name}/other"] == "deleted"
    assert f'"{name}/other"' not in exported(target)


def test_prune_keeps_the_backlog_queues_of_paired_clients(target: ServerProcess, name: str) -> None:
    ready = ("--ready-file", str(target.ready_file))
    backlog = f"{name}/x-servicebus-transfer/0"
    entity("create", "queue", backlog, *ready)
    Path("none.toml").touch()
    assert backlog not in imported("none.toml", "--prune", "--yes", *ready)
    assert f'"{backlog}"' in exported(target)


def test_prune_does_not_delete_what_a_prefix_leaves_out(target: ServerProcess) -> None:
    result = invoke(
        "entity", "import", "--from-namespace", "--prefix=a", "--prune", "--ready-file", str(target.ready_file)
    )
    assert result.exit_code == EXIT_MISUSE
    assert "--prune would delete all entities outside the --prefix" in result.output


def test_a_refused_entity_is_reported_and_the_others_are_imported(target: ServerProcess, name: str) -> None:
    ready = ("--ready-file", str(target.ready_file))
    entity("create", "topic", f"{name}/a", *ready)
    Path("two.toml").write_text(f'[[queues]]\nname = "{name}/a"\n[[queues]]\nname = "{name}/b"')
    result = invoke("entity", "import", "two.toml", *ready, columns=200)
    assert result.exit_code == EXIT_FAILED
    assert f"refused   queue {name}/a\n          two.toml: queues[0].name: '{name}/a' already exists as a topic" in (
        result.output
    )
    assert result.output.endswith("1 refused, 1 created.\n")


def test_a_file_with_keys_can_be_read_by_its_owner_only(server: ServerProcess, queue: str) -> None:
    exported(server, "keys.toml", "--prefix", queue, "--with-keys")
    assert stat.S_IMODE(Path("keys.toml").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("import",), EXIT_MISUSE, "give either a FILE or --from-namespace"),
        (("import", "none.json"), EXIT_MISUSE, "none.json: cannot be read: No such file"),
        (("import", "bad.toml"), EXIT_MISUSE, "bad.toml: queues[0].lock_duration: '3': it has to be an ISO 8601"),
        (("import", "rule.toml"), EXIT_MISUSE, "rule.toml: topics[0].subscriptions[0].rules[0].sql: "),
        (("import", "--from-namespace"), EXIT_MISUSE, "no source namespace is given: use --source-ready-file"),
        (("export", "bad.toml"), EXIT_FAILED, "bad.toml exists already: add --force"),
        (("export", "file.txt"), EXIT_MISUSE, "'txt' is not a format"),
        (("export", "file.json", "--with-keys"), EXIT_MISUSE, "Config.json has no keys of entities"),
    ],
)
def test_a_refusal_is_one_line(arguments: tuple[str, ...], code: int, reason: str, server: ServerProcess) -> None:
    Path("bad.toml").write_text('[[queues]]\nname = "a"\nlock_duration = "3"')
    Path("rule.toml").write_text(
        '[[topics]]\nname = "t"\n[[topics.subscriptions]]\nname = "s"\n[[topics.subscriptions.rules]]\n'
        'name = "r"\nsql = "a >"'
    )
    result = invoke("entity", *arguments, "--ready-file", str(server.ready_file))
    assert (result.exit_code, result.output.count("\n")) == (code, 1), result.output
    assert result.output.startswith(f"twinbus entity {arguments[0]}: {reason}")
