"""A report on the screen. Its charts are left out: they are on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as ScreenTable

    from twinbus.pipeline.costs.document import Document, Table


def show(document: Document, console: Console) -> None:
    """Print it. Names that came from elsewhere are not taken for markup."""
    from rich.text import Text  # noqa: PLC0415  # `serve` starts sooner without

    console.print(Text(document.title, style="bold"))
    for name, value in document.facts:
        console.print(Text(f"  {name}: {value}"))
    for warning in document.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for section in document.sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        for paragraph in section.paragraphs:
            console.print(Text(paragraph))
        for table in section.tables:
            console.print(_table(table))


def _table(table: Table) -> ScreenTable:
    from rich.table import Table as ScreenTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = ScreenTable(title=Text(table.caption) if table.caption else None, title_justify="left", show_footer=False)
    for number, head in enumerate(table.heads):
        made.add_column(Text(head), justify="right" if table.is_number(number) else "left", overflow="fold")
    for number, row in enumerate(table.rows):
        left = len(table.rows) - number - 1 if table.has_total else -1
        made.add_row(*map(Text, row), style="bold" if left == 0 else None, end_section=left == 1)
    return made
