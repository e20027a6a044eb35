"""Files contain no addresses of registries or paths of machines; documents name existing commands and files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Split in two parts, so that this file does not contain them.
FORBIDDEN = re.compile(
    "|".join(
        [
            "pypi" + r"\.org",
            "python" + "hosted",
            "(extra-)?index" + "-url",
            "find" + "-links",
            "npm" + r"js\.org",
            r"(?<![\w.*])/(root|home|Users|opt|work)" + r"/\w",
        ]
    )
)
PACKAGES = sorted(path.parent for path in (ROOT / "src").rglob("__init__.py"))


def files_of_the_project() -> list[Path]:
    """Return all files except generated ones, without git, which may not be installed."""
    generated = re.compile(r"\.(?!ci\b|git(hub|ignore)\b).+|__pycache__|node_modules|build|dist|.+\.egg-info")
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(generated.fullmatch(part) for part in path.relative_to(ROOT).parts)
    ]


def test_no_file_names_a_registry_or_a_path_of_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files_of_the_project()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if (match := FORBIDDEN.search(line))
    ]
    assert found == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_command_in_the_documents_is_in_the_makefile(document: str) -> None:
    commands = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    documented = set(re.findall(r"\bmake ([a-z]+)`", (ROOT / document).read_text()))
    assert documented
    assert documented <= commands


def test_the_documents_name_only_files_that_exist() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


@pytest.mark.parametrize(
    "package", [pytest.param(package, id=str(package.relative_to(ROOT / "src"))) for package in PACKAGES]
)
def test_every_package_has_a_docstring(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert docstring
    assert docstring.count("\n") >= 2, (
        "the first line says what the package is, the next ones what it owns and must not know"
    )


def test_the_design_lists_every_package() -> None:
    listed = set(re.findall(r"^ +([a-z_]+)/ ", (ROOT / "docs/design.md").read_text(), flags=re.MULTILINE))
    assert listed == {package.name for package in PACKAGES} - {"twinbus"}
