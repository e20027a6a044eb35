"""Published figures come from committed code."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from bench.support.results import RESULTS, results_folder, uncommitted

PAGES = sorted(RESULTS.glob("*.*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_figure_comes_from_uncommitted_code(page: Path) -> None:
    assert "-dirty" not in page.read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one code file and one page, both committed."""
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    (tmp_path / "src" / "code.py").write_text("1\n")
    (tmp_path / "docs" / "benchmarks" / "page.md").write_text("1\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)
    return tmp_path


def test_changed_code_is_refused_before_anything_is_measured(repository: Path) -> None:
    published = str(repository / "docs" / "benchmarks")
    assert results_folder(published, repository) == Path(published)
    (repository / "src" / "code.py").write_text("2\n")
    with pytest.raises(argparse.ArgumentTypeError, match=r"src/code\.py is not committed \(1 in all\): commit first"):
        results_folder(published, repository)
    assert results_folder(str(repository / "elsewhere"), repository) == repository / "elsewhere"


def test_an_uncommitted_page_of_results_does_not_count(repository: Path) -> None:
    (repository / "docs" / "benchmarks" / "page.md").write_text("2\n")
    assert uncommitted(repository) == []
