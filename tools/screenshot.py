"""Writes docs/images/report.png, the picture in the README: the top of a real report, that of the demo.

Needs Chromium and its driver. ``python tools/screenshot.py`` trains the demo first, which takes a minute;
``python tools/screenshot.py report.html`` takes a report that is there.
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "images" / "report.png"
WIDTH: Final = 1120
HEIGHT: Final = 978
"""As far down as the table of what was checked."""
COLOURS: Final = 96
MOST_BYTES: Final = 150_000


def demo_report(folder: Path) -> Path:
    """The report on the demo, trained into ``folder``."""
    from pth_tracker.demo import MlflowSink, embedded_store, experiment_name, run_demo
    from pth_tracker.engine import Options, audit
    from pth_tracker.render.html import to_html
    from pth_tracker.tracker import find_tracker

    uri, project = embedded_store(folder), experiment_name(False)
    run_demo(lambda: MlflowSink(uri, project))
    tracker, _ = find_tracker(project, [uri])
    with closing(tracker):
        report = audit(tracker, Options(project=project), chosen="mlflow at sqlite:///pth-demo/mlflow.db, as named")
    path = folder / "report.html"
    path.write_text(to_html(report), encoding="utf-8")
    return path


def photograph(page: Path) -> bytes:
    """The top of the page as PNG, in few colours."""
    from PIL import Image
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(argument)
    chrome = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1.5, "mobile": False}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chrome.get(page.resolve().as_uri())
        taken = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    finally:
        chrome.quit()
    image = Image.open(io.BytesIO(base64.b64decode(taken))).convert("RGB")
    stream = io.BytesIO()
    image.quantize(COLOURS).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def main(arguments: list[str]) -> None:
    """Takes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        picture = photograph(Path(arguments[0]) if arguments else demo_report(Path(folder)))
    if len(picture) > MOST_BYTES:
        raise SystemExit(f"the picture has {len(picture)} bytes, and {MOST_BYTES} are the most it may have")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(picture)
    print(f"{PICTURE.relative_to(ROOT)}: {len(picture)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
