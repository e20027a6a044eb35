"""A new user can follow README.md: every block works as printed, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.install.distribution_build import SourceCopy
from tests.install.quick_start import README, QuickStart, blocks_of

if TYPE_CHECKING:
    from pathlib import Path


def test_every_block_of_the_readme_works_as_printed(tmp_path: Path) -> None:
    wheel, _ = SourceCopy.copied(tmp_path / "source").build("wheel", compiled="0")
    install, *blocks = blocks_of(README)
    received: list[str] = []
    with QuickStart(tmp_path, wheel) as user:
        user.install(install)
        for block in blocks:
            if not block.serves:
                received.append(user.run(block))
                continue
            if received:
                user.stop_serving()
            user.serve(block)
        user.stop_serving()
    assert [block.language for block in blocks if not block.serves] == ["sh", "python", "python", "python"]
    assert all("two pounds of apples" in output for output in received[:3])


def test_the_programs_of_the_readme_have_about_ten_lines() -> None:
    programs = [block.text for block in blocks_of(README) if block.language == "python"]
    assert programs
    for text in programs:
        assert len(text.splitlines()) <= 12
