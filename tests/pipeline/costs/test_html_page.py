"""The HTML page is self-contained, escapes its input, and is accessible."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from twinbus.pipeline.costs.document import BarChart, Document, Section, StackedChart, Table
from twinbus.pipeline.costs.html_page import render_page
from twinbus.pipeline.costs.prediction_document import prediction_document
from twinbus.pipeline.costs.setup import Setup, Traffic
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.costs.what_if import predict

EVIL = "<script>alert('x')</script>\"&"
VOID = {"meta", "path", "rect"}


class Reader(HTMLParser):
    """Collects the tags and texts of a page; fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def evil_document() -> Document:
    table = Table((EVIL, f">{EVIL}"), [(EVIL, EVIL), ("all", "1")], caption=EVIL, has_total=True)
    charts = (BarChart(EVIL, [(EVIL, 1.0, EVIL)]), StackedChart(EVIL, EVIL, [EVIL, EVIL], [(EVIL, [1.0, 2.0])]))
    section = Section(title=EVIL, paragraphs=(EVIL,), tables=(table,), charts=charts)
    return Document(title=EVIL, facts=[(EVIL, EVIL)], warnings=[EVIL], sections=[section])


def predicted_page() -> str:
    setup = Setup(outage_minutes=(45,), traffic=(Traffic(), Traffic(name="news", subscriptions=3)))
    return render_page(prediction_document(predict(setup, read_tariff())), "today")


@pytest.mark.parametrize("page", [predicted_page(), render_page(evil_document(), EVIL)])
def test_the_page_fetches_nothing_and_runs_no_script(page: str) -> None:
    reader = read(page)
    assert {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object", "base", "form", "a"} == set()
    for _, attributes in reader.tags:
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        addresses = [value for value in attributes.values() if value and "://" in value]
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a namespace name, which browsers do not fetch
    assert not re.search(r"url\(|@import|javascript:", page)
    policies = [meta["content"] for tag, meta in reader.tags if tag == "meta" and meta.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_external_text_is_escaped() -> None:
    page = render_page(evil_document(), EVIL)
    assert "<script" not in page
    texts = "".join(read(page).texts)
    assert texts.count(EVIL) >= 14


def test_the_page_is_accessible_to_screen_readers() -> None:
    page = predicted_page()
    reader = read(page)
    charts = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert charts
    assert all(attributes["role"] == "img" for attributes in charts)
    assert page.count("<svg") == page.count("<desc>") == page.count("</svg>")
    heads = [attributes for tag, attributes in reader.tags if tag == "th"]
    assert all(attributes.get("scope") in {"col", "row"} for attributes in heads)
    assert ("html", {"lang": "en"}) in reader.tags
    assert [tag for tag, _ in reader.tags].count("h1") == 1


def test_the_page_supports_phones_and_dark_mode() -> None:
    page = predicted_page()
    assert 'name="viewport"' in page
    assert "@media(prefers-color-scheme:dark)" in page
    assert "@media(max-width:40rem)" in page


def test_empty_charts_are_drawn() -> None:
    empty = (
        BarChart("none", []),
        BarChart("zero", [("a", 0.0, "0")]),
        StackedChart("none", "x", [], []),
        StackedChart("z", "x", ["a"], []),
    )
    read(render_page(Document(title="t", sections=[Section(title="s", charts=empty)]), "today"))


def test_the_page_shows_the_prediction() -> None:
    texts = " ".join(read(predicted_page()).texts)
    for text in ("paired namespaces", "active replication", "Premium", "28,800", "send to backlog", "2026-11-01"):
        assert text in texts
