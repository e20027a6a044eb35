"""Distributions are complete, and can be built without a compiler."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.install.distribution_build import NO_PROGRAMS, ROOT, BuildFailed, SourceCopy
from twinbus import __version__

DATA_FILES = {"py.typed", "sample.toml"}
GENERATED_FILES = ("tests/sdk_js/node_modules/x/x.js", "build/x.c", ".run/contoso/keys.json", ".venv-run/x.py")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> SourceCopy:
    """Return an unpacked source distribution, built in a folder with generated files."""
    folder = tmp_path_factory.mktemp("sdist")
    source = SourceCopy.copied(folder / "checkout")
    for name in GENERATED_FILES:
        (source.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source.folder / name).write_text("")
    file, _ = source.build("sdist")
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return SourceCopy(folder / f"twinbus-{__version__}")


@pytest.fixture(scope="module")
def plain_wheel(unpacked: SourceCopy) -> tuple[Path, str]:
    """Return a wheel that was built from the source distribution without a compiler, and the output."""
    return unpacked.build("wheel", path=NO_PROGRAMS)


def sources(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "twinbus").rglob("*") if is_source(path)}


def is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"


def test_the_source_distribution_has_all_sources_and_no_generated_files(unpacked: SourceCopy) -> None:
    assert sources(unpacked.folder / "src") == sources(ROOT / "src")
    names = {path.name for path in unpacked.folder.iterdir()}
    assert names == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "src"}


def test_without_a_compiler_the_wheel_is_plain_python_and_complete(plain_wheel: tuple[Path, str]) -> None:
    file, output = plain_wheel
    assert file.name == f"twinbus-{__version__}-py3-none-any.whl"
    assert "twinbus is built as plain Python, which is slower: no working C compiler" in output
    with zipfile.ZipFile(file) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources(ROOT / "src")
    assert {Path(name).name for name in names} >= DATA_FILES


def test_the_version_of_the_installed_wheel_says_pure_python(plain_wheel: tuple[Path, str], tmp_path: Path) -> None:
    with zipfile.ZipFile(plain_wheel[0]) as archive:
        archive.extractall(tmp_path)  # noqa: S202  # built above
    version = subprocess.run(
        [sys.executable, "-m", "twinbus", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert version.stdout == f"twinbus {__version__} (pure Python)\n"


def test_a_build_that_has_to_compile_fails_without_a_compiler(unpacked: SourceCopy) -> None:
    with pytest.raises(BuildFailed, match="twinbus cannot be compiled: no working C compiler"):
        unpacked.hook("build_wheel", "'made'", path=NO_PROGRAMS, compiled="1")


def test_mypy_is_a_build_requirement_only_with_a_compiler(unpacked: SourceCopy) -> None:
    assert "mypy>=" in unpacked.hook("get_requires_for_build_wheel").splitlines()[-1]
    assert unpacked.hook("get_requires_for_build_wheel", path=NO_PROGRAMS).splitlines()[-1] == "[]"


def test_compiled_files_import_no_package_that_an_isolated_build_lacks() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED"
    )
    files = [ROOT / "src/twinbus" / package / f"{name}.py" for package, names in listed.items() for name in names]
    allowed = sys.stdlib_module_names | {"twinbus"}
    assert {file.name: found for file in files if (found := imported_packages(file) - allowed)} == {}


def imported_packages(file: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "").partition(".")[0])
    return packages
