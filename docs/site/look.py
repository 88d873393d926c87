"""Looks at the site in headless Chromium: every page in a wide and a narrow window, pictures of five.

    python docs/site/look.py [SITE] [PICTURES]        (build/docs/html and build/docs/pictures)

Prints the pages that are wider than their window, that load something from another site or that the browser complains
of, and then exits with 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from lib.chromium import Page, chromium  # noqa: E402

WIDTHS = (1280, 390)
"""Of a laptop's window and of a telephone's."""
PICTURES = ("index", "docs/guide", "docs/layers/rotrnn", "docs/results", "reference/ops/scan")
"""Pages that are drawn."""
COMPLETE = "document.readyState == 'complete'"
WIDTH = "document.scrollingElement.scrollWidth"
LOADED = "performance.getEntriesByType('resource').map(one => one.name).find(one => !/^(file|data):/.test(one)) || ''"


def look(site: Path, pictures: Path) -> list[str]:
    """Returns the errors, and writes the pictures."""
    pages = sorted(path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html"))
    wrong = [f"{name}: there is no such page" for name in PICTURES if name not in pages]
    pictures.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        with Page(site / "index.html", width, 900, ready=COMPLETE) as page:
            for name in pages:
                page.go(site / f"{name}.html", COMPLETE)
                if (wide := page.run(WIDTH)) > width:
                    wrong.append(f"{name}: {wide} pixels wide in a window of {width}")
                if foreign := page.run(LOADED):
                    wrong.append(f"{name}: loads {foreign} from another site")
                if name in PICTURES:
                    page.picture(pictures / f"{name.replace('/', '-')}-{width}.png")
            wrong += [f"in a window of {width}: {error}" for error in page.errors]
    return wrong


def main(site: str = "build/docs/html", pictures: str = "build/docs/pictures") -> int:
    if chromium() is None:
        print("docs/site/look.py: no chromium here, so nobody looks at the site")
        return 0
    wrong = look(ROOT / site, ROOT / pictures)
    print("\n".join(wrong) or f"site looked at in windows of {WIDTHS[0]} and {WIDTHS[1]}; pictures in {pictures}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
