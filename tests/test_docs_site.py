"""The documentation site in a real browser, at the width of a phone."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES_PER_FOLDER = 2  # the largest


@pytest.mark.slow
def test_pages_fit_a_phone_load_nothing_from_elsewhere_and_have_no_errors(chromium, tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", site], cwd=ROOT, check=True)
    pages = [site / "index.html"]
    for folder in [site, *sorted(path for path in site.iterdir() if path.is_dir())]:
        pages += sorted(folder.glob("*.html"), key=lambda path: -path.stat().st_size)[:PAGES_PER_FOLDER]
    faults = []
    with chromium.new_context(viewport={"width": 390, "height": 800}) as context:
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: r.url.startswith((site.as_uri(), "data:", "blob:")) or faults.append(r.url))
        for path in pages:
            page.goto(path.as_uri())
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                faults.append(f"{path.relative_to(site)} is wider than the screen")
    assert len(pages) > 12
    assert faults == []
