"""The lock files pin all packages, without addresses of registries or paths of machines."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.install import oldest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
# An entry is a line that starts with a name, and its continuation lines.
ENTRIES = re.findall(r"^[a-z].*(?:\n[ \t]+.*)*", LOCK, flags=re.MULTILINE)


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


@pytest.mark.parametrize("entry", [pytest.param(entry, id=name_of(entry)) for entry in ENTRIES])
def test_every_entry_has_one_version_and_its_hashes(entry: str) -> None:
    assert re.match(r"[a-z0-9-]+==[^ ]+ (; .* )?\\\n +--hash=sha256:[0-9a-f]{64}\b", entry)


def test_nothing_else_is_in_the_lock() -> None:
    rest = LOCK
    for entry in ENTRIES:
        rest = rest.replace(entry, "", 1)
    assert [line for line in rest.splitlines() if line and not line.lstrip().startswith("#")] == []


def test_no_addresses_and_no_paths() -> None:
    assert "://" not in LOCK
    assert not re.search(r"(^|[\s=@])(file:|\.{0,2}/)", LOCK)


def test_all_requirements_are_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {name_of(requirement) for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]}
    assert wanted <= {name_of(entry) for entry in ENTRIES}


# --- the lock for serving ---------------------------------------------------------------------------------------------

RUN_LOCK = (ROOT / "requirements-run.lock").read_text()


def versions_and_hashes(lock: str) -> dict[str, list[str]]:
    entries = re.findall(r"^[a-z].*(?:\n[ \t]+.*)*", lock, flags=re.MULTILINE)
    return {name_of(entry): re.findall(r"==[^ ]+|sha256:[0-9a-f]{64}", entry) for entry in entries}


def test_the_lock_for_serving_has_the_tested_versions_and_no_test_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    all_locked, run_locked = versions_and_hashes(LOCK), versions_and_hashes(RUN_LOCK)
    assert {name_of(requirement) for requirement in project["dependencies"]} <= run_locked.keys()
    assert {name: all_locked[name] for name in run_locked} == run_locked
    assert run_locked.keys().isdisjoint({"pyspark", "pyarrow", "mypy", "setuptools", "pytest", "python-qpid-proton"})


def test_every_requirement_has_a_lower_bound_not_above_the_locked_version() -> None:
    locked = versions_and_hashes(LOCK)
    for requirement in oldest.lowest():
        name, _, lowest = requirement.partition("==")
        assert numbers(lowest) <= numbers(locked[name][0].removeprefix("==")), requirement


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


# --- the lock for JavaScript ------------------------------------------------------------------------------------------

JAVASCRIPT = json.loads((ROOT / "tests/sdk_js/package-lock.json").read_text())


def test_the_lock_for_javascript_has_one_version_and_hash_for_everything_and_no_addresses() -> None:
    own, *others = JAVASCRIPT["packages"].items()
    assert own[0] == ""
    for name, package in others:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"]), name
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


def test_the_requirements_of_javascript_are_pinned() -> None:
    wanted = json.loads((ROOT / "tests/sdk_js/package.json").read_text())["devDependencies"]
    assert wanted == JAVASCRIPT["packages"][""]["devDependencies"]
    assert all(JAVASCRIPT["packages"][f"node_modules/{name}"]["version"] == version for name, version in wanted.items())
