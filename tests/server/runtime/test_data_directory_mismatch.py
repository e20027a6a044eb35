"""A server is not started on another namespace's data, nor with stores that contradict those that are there."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.server.config.settings import InvalidSetting, ServeSettings
from twinbus.server.runtime.data_directory import DataDirectory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def claim(path: Path, name: str = "contoso", **settings: Any) -> tuple[Path, ...]:  # noqa: ANN401
    """As every start of a server does it, with one process or several."""
    with DataDirectory(path) as data:
        return data.prepare_stores(ServeSettings(name=name, data=path, **settings))


def serve(*arguments: str) -> tuple[int, str]:
    """The exit code and what is said of a server that does not start."""
    run = subprocess.run(
        [sys.executable, "-m", "twinbus", "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return run.returncode, run.stderr


# ------------------------------------------------------------------------------------------------------- the name


def test_another_namespaces_data_is_refused_with_both_names(path: Path) -> None:
    stores = claim(path)
    code, said = serve("fabrikam", f"--data={path}", "--log-level=error")
    assert code == 2
    assert said == (
        f"twinbus serve: NAME fabrikam: {path} holds the data of the namespace 'contoso': serve it by that name, or "
        f"give another --data. To rename the namespace, write the new name to {path}/namespace\n"
    )
    assert claim(path) == claim(path, "Contoso") == stores, "the same name in other letters is the same name"


def test_a_name_in_a_file_is_refused_at_its_key_and_workers_make_no_difference(path: Path, tmp_path: Path) -> None:
    claim(path)
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "fabrikam"\ndata = "data"\nworkers = 2\nlog_level = "error"\n')
    code, said = serve(f"--config={file}")
    assert code == 2
    assert said.startswith(f"twinbus serve: {file}: name: fabrikam: {path} holds the data of the namespace 'contoso': ")


def test_a_namespace_is_renamed_by_the_file_in_its_data(path: Path) -> None:
    stores = claim(path)
    (path / "namespace").write_text("fabrikam\n")
    assert claim(path, "fabrikam") == stores


def test_data_of_an_earlier_version_gets_the_name_that_it_is_served_by(path: Path) -> None:
    stores = claim(path)
    (path / "namespace").unlink()
    assert claim(path, "fabrikam") == stores
    with pytest.raises(InvalidSetting, match="'fabrikam'"):
        claim(path, "contoso")


def test_a_first_start_that_was_refused_leaves_no_name(path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--workers 5: each needs a store of its own, and .* gets 4"):
        claim(path, "wrong", workers=5)
    assert len(claim(path, "right", workers=5, stores=5)) == 5


# ----------------------------------------------------------------------------------------------------- the stores


def test_without_a_number_there_are_as_many_stores_as_before(path: Path) -> None:
    eight = claim(path, stores=8)
    assert claim(path) == claim(path, stores=8) == claim(path, workers=8) == eight


def test_fewer_stores_than_there_are_is_refused(path: Path, tmp_path: Path) -> None:
    claim(path)
    reason = f"{path} has 4 stores, and none can be removed: give {{}}stores 4, or leave it out\n"
    with pytest.raises(InvalidSetting) as caught:
        claim(path, stores=2)
    assert f"{caught.value}\n" == f"--stores 2: {reason.format('--')}"
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "contoso"\ndata = "data"\nstores = 2\nworkers = 2\nlog_level = "error"\n')
    assert serve(f"--config={file}") == (2, f"twinbus serve: {file}: stores: 2: {reason.format('')}")


def test_more_stores_are_added_and_a_warning_says_what_that_does(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    four = claim(path)
    assert caplog.messages == []
    assert claim(path, stores=6)[:4] == four
    assert caplog.messages == ["2 stores are added: existing entities stay in the stores that they are in"]


# ------------------------------------------------------------------------------------------------- their directories


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("disk 0", "disk 1", "disk 2")]
    for disk in made:
        disk.mkdir()
    return made


def test_the_directories_of_the_first_start_are_good_at_every_start(
    path: Path, disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    stores = claim(path, store_dirs=tuple(disks))
    (path / "link").symlink_to(disks[2])
    assert claim(path, store_dirs=(disks[0], disks[1], path / "link")) == claim(path) == stores
    assert caplog.messages == []


def test_a_directory_in_which_no_store_lies_is_refused(path: Path, disks: list[Path]) -> None:
    stores = claim(path, store_dirs=(disks[0], disks[1]))
    with pytest.raises(InvalidSetting) as caught:
        claim(path, store_dirs=(disks[0], disks[2]))
    assert str(caught.value) == (
        f"--store-dir {disks[2]}: no store lies there, and stores cannot be moved by this option: the 4 stores of "
        f"{path} lie in {disks[0]}, {disks[1]}. Leave --store-dir out, or add stores there with a higher --stores"
    )
    assert claim(path) == stores
    assert list(disks[2].iterdir()) == []


def test_stores_are_added_in_another_directory_and_the_others_stay_with_a_warning(
    path: Path, disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    four = claim(path)
    with caplog.at_level(logging.WARNING):
        six = claim(path, stores=6, store_dirs=(disks[0],))
    assert six[:4] == four
    assert all(store.is_relative_to(disks[0]) for store in six[4:])
    assert "4 stores lie in no --store-dir, and stay where they are" in caplog.messages
    assert claim(path, stores=6, store_dirs=(disks[0],)) == six, "the same options at the next start"


def test_a_directory_in_a_file_is_refused_at_its_key(path: Path, disks: list[Path], tmp_path: Path) -> None:
    claim(path)
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "contoso"\ndata = "data"\nstore_dirs = ["disk 1"]\nlog_level = "error"\n')
    code, said = serve(f"--config={file}")
    assert code == 2
    assert said.startswith(f"twinbus serve: {file}: store_dirs: {disks[1]}: no store lies there, ")
