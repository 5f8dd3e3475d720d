"""Open every page of the built site in headless Chromium and fail on what a reader would notice.

    python docs/check_site.py build/site [--screenshots FOLDER]

Each page is opened from the folder and from a server, as wide as a desktop and as a phone. It fails
on errors in the console, on requests that fail or go to another host, on links and anchors that
lead nowhere, on formulas left as source, and on pages wider than the screen. Where there is no
Chromium it says so and checks nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag

from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCREENS = {"desktop": (1280, 900), "phone": (390, 844)}
SOURCE = re.compile(r"\$[^$\n]+\$|\\(?:frac|left|sum|mathbb|operatorname|hat|log|text)\b|:math:")
"""What a formula looks like that was not rendered."""
LOOK = """() => {
    const prose = document.body.cloneNode(true);
    prose.querySelectorAll('code, pre, script, style, math').forEach(node => node.remove());
    return {
        ids: [...document.querySelectorAll('[id]')].map(node => node.id),
        links: [...document.querySelectorAll('a[href]')].map(node => node.href),
        text: prose.textContent,
        errors: document.querySelectorAll('merror').length,
        wide: document.documentElement.scrollWidth - window.innerWidth,
    };
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine alone; the value is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def watch(page: Page, base: str, found: list[str]) -> None:
    """Note what goes wrong while pages load."""
    page.on(
        "console",
        lambda message: (
            found.append(f"console: {message.text}")
            if message.type in {"error", "warning"}
            else None
        ),
    )
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on(
        "requestfailed",
        lambda request: (
            None
            if request.failure == "net::ERR_ABORTED"  # the next page came first
            else found.append(f"failed: {request.url}")
        ),
    )
    page.on(
        "response",
        lambda answer: (
            found.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((base, "data:"))
            else found.append(f"elsewhere: {request.url}")
        ),
    )


def visit(
    browser: Browser, base: str, names: list[str], screen: str, pictures: Path | None
) -> list[str]:
    """Open all pages at one width; return what is wrong with them."""
    width, height = SCREENS[screen]
    page = browser.new_page(viewport={"width": width, "height": height})
    found: list[str] = []
    watch(page, base, found)
    wrong, ids, links = [], {}, {}
    for name in names:
        page.goto(f"{base}/{name}", wait_until="load")
        seen = page.evaluate(LOOK)
        ids[name], links[name] = set(seen["ids"]), seen["links"]
        if seen["errors"] or (source := SOURCE.search(seen["text"])):
            wrong.append(f"{name}: a formula was not rendered: {source and source.group()}")
        if seen["wide"] > 0:
            wrong.append(f"{name}: {seen['wide']} pixels wider than a {screen}")
        wrong += [f"{name}: {one}" for one in found]
        found.clear()
        if pictures is not None:
            target = pictures / screen / (name.replace("/", "-").removesuffix(".html") + ".png")
            page.screenshot(path=target, full_page=True)
    page.close()
    for name, targets in links.items():
        for target in targets:
            if (reason := dead(target, base, ids)) is not None:
                wrong.append(f"{name}: {reason}")
    return wrong


def dead(link: str, base: str, ids: dict[str, set[str]]) -> str | None:
    """Return why a link within the site leads nowhere; None if it leads somewhere, or away."""
    address, anchor = urldefrag(link)
    if not address.startswith(f"{base}/"):
        return None
    name = unquote(address.removeprefix(f"{base}/")) or "index.html"
    if name not in ids:
        return None if not name.endswith(".html") else f"no page {name}"
    if anchor and unquote(anchor) not in ids[name]:
        return f"no anchor {unquote(anchor)} on {name}"
    return None


def main() -> int:
    """Check a built site; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    if not names:
        parser.error(f"{site} holds no pages; build the site first (make docs)")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print(f"skipped the check of {len(names)} pages: none of {', '.join(BROWSERS)} is here")
        return 0
    wrong: list[str] = []
    with sync_playwright() as driver, served(site) as address:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for screen in SCREENS:
            wrong += visit(browser, site.as_uri(), names, screen, arguments.screenshots)
        wrong += visit(browser, address, names, "desktop", None)
        browser.close()
    print("\n".join(dict.fromkeys(wrong)) or f"{len(names)} pages are in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
