"""The pages: each is in the index, and each link to a page or a heading leads there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.pages import PAGES

ROOT = PAGES.parent
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(PAGES.glob("*.md"))]
CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return what GitHub and MkDocs call the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).lower())
        found.add(words.strip().replace(" ", "-"))
    return found


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", CODE.sub("", page.read_text("utf-8")))
    return [link for link in LINK.findall(text) if not link.startswith(("http://", "https://"))]


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`, three\n```\n# no heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text("[x](b.md#one-two-three) [x](b.md#no-heading) [x](c.md) [x](#a) `[x](d.md)`\n```\n[x](e.md)\n```\n")
    assert broken(page) == ["b.md#no-heading", "c.md", "#a"]


def test_the_index_has_every_page() -> None:
    assert set(links(PAGES / "index.md")) == {page.name for page in PAGES.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_a_page_links_to_pages_only(page: Path) -> None:
    """A site has no other files."""
    assert [link for link in links(page) if not re.fullmatch(r"([\w-]+\.md)?(#.*)?", link)] == []
