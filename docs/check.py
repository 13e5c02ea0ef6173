"""Check the built site: `python -m docs.check SITE`.

Zensical checks the links of each Markdown page. This checks the rest in the HTML: links in generated tables, images,
entries of the navigation, pages that no entry leads to, and files loaded from other hosts.
"""

import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ROOT: Final = Path(__file__).parents[1]
LOADING_TAGS: Final = frozenset({"audio", "iframe", "img", "link", "script", "source", "video"})


class Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.add(value)
                if tag in LOADING_TAGS:
                    self.loaded.add(value)


def problems(site: Path, sources: Iterable[str], navigation: str) -> list[str]:
    """Return a line for each broken link, foreign file and unlisted page. `sources` are paths below docs/."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        at = path.relative_to(site.resolve())
        found += [f"{at}: loads {each} from another host" for each in sorted(page.loaded) if urlsplit(each).netloc]
        found += [f"{at}: broken link {each}" for each in sorted(page.links) if not _resolves(path, each, pages)]
    return found + [f"mkdocs.yml: nav lacks {name}" for name in sorted(sources) if f" {name}\n" not in navigation]


def _resolves(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    anchor = unquote(parts.fragment)
    if not anchor or anchor.startswith("__"):  # the theme's own controls
        return target.exists()
    return target in pages and anchor in pages[target].anchors


def main() -> None:
    docs = ROOT / "docs"
    sources = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    sys.exit("\n".join(problems(Path(sys.argv[1]), sources, navigation)) or 0)


if __name__ == "__main__":
    main()
