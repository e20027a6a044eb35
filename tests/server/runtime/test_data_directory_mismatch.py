"""A server refuses another namespace's data, and options that contradict the existing stores."""

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
    """Open the data directory as every start of a server does, with one process or several."""
    with DataDirectory(path) as data:
        return data.prepare_stores(ServeSettings(name=name, data=path, **settings))


def serve(*arguments: str) -> tuple[int, str]:
    """Run a server that cannot start, and return its exit code and error output."""
    run = subprocess.run(
        [sys.executable, "-m", "twinbus", "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return run.returncode, run.stderr


# ------------------------------------------------------------------------------------------------------- the name


def test_another_namespaces_data_is_refused_with_both_names(path: Path) -> None:
    stores = claim(path)
    code, output = serve("fabrikam", f"--data={path}", "--log-level=error")
    assert code == 2
    assert output == (
        f"twinbus serve: NAME fabrikam: {path} holds the data of the namespace 'contoso': serve it by that name, or "
        f"give another --data. To rename the namespace, write the new name to {path}/namespace\n"
    )
    assert claim(path) == claim(path, "Contoso") == stores, "the same name in other letters is the same name"


def test_a_wrong_name_in_the_configuration_file_is_reported_with_its_key(path: Path, tmp_path: Path) -> None:
    claim(path)
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "fabrikam"\ndata = "data"\nworkers = 2\nlog_level = "error"\n')
    code, output = serve(f"--config={file}")
    assert code == 2
    assert output.startswith(
        f"twinbus serve: {file}: name: fabrikam: {path} holds the data of the namespace 'contoso': "
    )


def test_a_namespace_is_renamed_by_the_file_in_its_data_directory(path: Path) -> None:
    stores = claim(path)
    (path / "namespace").write_text("fabrikam\n")
    assert claim(path, "fabrikam") == stores


def test_data_of_an_earlier_version_gets_the_name_of_the_first_start(path: Path) -> None:
    stores = claim(path)
    (path / "namespace").unlink()
    assert claim(path, "fabrikam") == stores
    with pytest.raises(InvalidSetting, match="'fabrikam'"):
        claim(path, "contoso")


def test_a_refused_first_start_stores_no_name(path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"--workers 5: each worker needs a store of its own, but .* gets 4"):
        claim(path, "wrong", workers=5)
    assert len(claim(path, "right", workers=5, stores=5)) == 5


# ----------------------------------------------------------------------------------------------------- the stores


def test_without_the_option_the_number_of_stores_stays(path: Path) -> None:
    eight = claim(path, stores=8)
    assert claim(path) == claim(path, stores=8) == claim(path, workers=8) == eight


def test_a_lower_number_of_stores_is_refused(path: Path, tmp_path: Path) -> None:
    claim(path)
    reason = f"{path} has 4 stores, which cannot be removed: give {{}}stores 4, or leave it out\n"
    with pytest.raises(InvalidSetting) as caught:
        claim(path, stores=2)
    assert f"{caught.value}\n" == f"--stores 2: {reason.format('--')}"
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "contoso"\ndata = "data"\nstores = 2\nworkers = 2\nlog_level = "error"\n')
    assert serve(f"--config={file}") == (2, f"twinbus serve: {file}: stores: 2: {reason.format('')}")


def test_more_stores_are_added_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    four = claim(path)
    assert caplog.messages == []
    assert claim(path, stores=6)[:4] == four
    assert caplog.messages == ["2 stores are added: existing entities stay in their present stores"]


# ------------------------------------------------------------------------------------------------- their directories


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("disk 0", "disk 1", "disk 2")]
    for disk in folders:
        disk.mkdir()
    return folders


def test_the_directories_of_the_first_start_are_accepted_at_every_start(
    path: Path, disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    stores = claim(path, store_dirs=tuple(disks))
    (path / "link").symlink_to(disks[2])
    assert claim(path, store_dirs=(disks[0], disks[1], path / "link")) == claim(path) == stores
    assert caplog.messages == []


def test_a_directory_without_a_store_is_refused(path: Path, disks: list[Path]) -> None:
    stores = claim(path, store_dirs=(disks[0], disks[1]))
    with pytest.raises(InvalidSetting) as caught:
        claim(path, store_dirs=(disks[0], disks[2]))
    assert str(caught.value) == (
        f"--store-dir {disks[2]}: has no store, and this option cannot move stores: the 4 stores of "
        f"{path} are in {disks[0]}, {disks[1]}. Leave --store-dir out, or add stores there with a higher --stores"
    )
    assert claim(path) == stores
    assert list(disks[2].iterdir()) == []


def test_stores_are_added_in_another_directory_and_a_warning_names_the_others(
    path: Path, disks: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    four = claim(path)
    with caplog.at_level(logging.WARNING):
        six = claim(path, stores=6, store_dirs=(disks[0],))
    assert six[:4] == four
    assert all(store.is_relative_to(disks[0]) for store in six[4:])
    assert "4 stores are in no --store-dir, and stay in their directories" in caplog.messages
    assert claim(path, stores=6, store_dirs=(disks[0],)) == six, "the same options at the next start"


def test_a_wrong_directory_in_the_configuration_file_is_reported_with_its_key(
    path: Path, disks: list[Path], tmp_path: Path
) -> None:
    claim(path)
    file = tmp_path / "twinbus.toml"
    file.write_text('name = "contoso"\ndata = "data"\nstore_dirs = ["disk 1"]\nlog_level = "error"\n')
    code, output = serve(f"--config={file}")
    assert code == 2
    assert output.startswith(f"twinbus serve: {file}: store_dirs: {disks[1]}: has no store, ")
