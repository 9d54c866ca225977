"""How soon the dashboard shows its overview and its first chart, from disk, and how large it is.

python benchmarks/dashboard.py [results/dashboard.html] [chromium]
"""

import statistics
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

REPEATS = 7


def main(page: Path, chromium: str) -> None:
    """Print seconds (median, least, most) of opening the page in a fresh context."""
    print(f"{page}: {page.stat().st_size / 1e6:.2f} MB")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for view, awaited in (("page-overview", ".card"), ("sqrt_d_entropy", ".current .chart svg")):
            seconds = []
            for _ in range(REPEATS):
                context = browser.new_context()
                tab = context.new_page()
                started = time.perf_counter()
                tab.goto(f"{page.resolve().as_uri()}#/{view}")
                tab.locator(awaited).first.wait_for(state="visible")
                seconds.append(time.perf_counter() - started)
                context.close()
            print(f"{view}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
        browser.close()


if __name__ == "__main__":
    main(Path((*sys.argv[1:], "results/dashboard.html")[0]), (*sys.argv[2:], "/usr/bin/chromium")[0])
