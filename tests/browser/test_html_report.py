"""The HTML report in a real browser: nothing is fetched, nothing complains, and what can be clicked works."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from conftest import skip_unless_required
from example_audits import full_audit
from pth_tracker.engine import Options, audit
from pth_tracker.model import Audit, Finding
from pth_tracker.render.html import to_html
from pth_tracker.render.text import safe_text
from pth_tracker.runs import RunRef
from pth_tracker.tracker import Address, open_address
from synthetic import ARMS, ONE_STEP, audit_of, comparison, idle, with_config, with_metrics

pytestmark = pytest.mark.slow
PHONE, DESK = 390, 1280
FIVE_MEGABYTES = 5_000_000
HOSTILE = (
    "<script>window.hit = 1; alert(1)</script>",
    "<img src=x onerror='window.hit = 1'>",
    "[red]x[/red]",
    '=HYPERLINK("http://evil.example/","x")',
    "a\x1b[31mred\x1b[0m\u202egnp.exe\r\nPASSED",
    "</script></style><svg onload='window.hit = 1'>",
    "\" onmouseover='window.hit = 1' x=\"",
)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A headless Chromium that logs what it requests; skips where none is installed."""
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not browser or not driver:
        skip_unless_required("PTH_TRACKER_REQUIRE_BROWSER", "Chromium or its driver is not installed")
    options = ChromeOptions()
    options.binary_location = browser
    home = tmp_path_factory.mktemp("chrome")
    for argument in ("--headless=new", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--user-data-dir={home}", f"--window-size={DESK},900"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = Chrome(options=options, service=Service(driver))
    opened.set_page_load_timeout(120)
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def demo_report(demo_template: Path) -> Audit:
    """The audit of the demo as it is trained here."""
    tracker = open_address(Address("mlflow", (f"sqlite:///{demo_template}",)))
    try:
        return audit(tracker, Options("rl-stale-demo"))
    finally:
        tracker.close()


@pytest.fixture(scope="module")
def demo_page(demo_report: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's report as a file."""
    return write(to_html(demo_report), tmp_path_factory.mktemp("demo-report"))


def write(text: str, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def open_page(chrome: Chrome, path: Path, width: int = DESK, **media: str) -> None:
    """Opens a page afresh at a width, under media features such as ``prefers-color-scheme``."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    chrome.get("about:blank")
    entries(chrome, "browser"), entries(chrome, "performance")
    chrome.get(path.as_uri())


def entries(chrome: Chrome, kind: str) -> list[dict[str, Any]]:
    """What the browser has logged since it was last asked."""
    read: Callable[[str], list[dict[str, Any]]] = chrome.get_log
    return read(kind)


def requested(chrome: Chrome) -> list[str]:
    """Everything that the page asked for since it was opened."""
    events = [json.loads(entry["message"])["message"] for entry in entries(chrome, "performance")]
    sent = (event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent")
    return [url for url in sent if not url.startswith("data:")]


def script(chrome: Chrome, code: str, *arguments: object) -> Any:
    return chrome.execute_script(code, *arguments)


def assert_quiet(chrome: Chrome, path: Path) -> None:
    assert requested(chrome) == [path.as_uri()], "the page alone is read"
    assert entries(chrome, "browser") == [], "the console stays empty"


def assert_fits(chrome: Chrome, width: int) -> None:
    sizes = "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    page, body, inner = script(chrome, sizes)
    wide = script(
        chrome,
        "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, .skip') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))",
    )
    assert (page, body, inner) == (width, width, width) and wide == []


def shown(chrome: Chrome, table: str) -> list[list[str]]:
    code = (
        "return [...document.getElementById(arguments[0]).tBodies[0].rows].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.textContent.trim()))"
    )
    rows: list[list[str]] = script(chrome, code, table)
    return rows


def tools(chrome: Chrome, table: str) -> tuple[WebElement, WebElement]:
    """The filter's field and its count."""
    bar = chrome.find_element(By.XPATH, f"//table[@id='{table}']/parent::*/preceding-sibling::div[@class='tools']")
    return bar.find_element(By.TAG_NAME, "input"), bar.find_element(By.TAG_NAME, "output")


def test_the_demo_is_shown_without_a_request_or_a_complaint(chrome: Chrome, demo_page: Path) -> None:
    open_page(chrome, demo_page)
    assert chrome.title == "Failed: rl-stale-demo"
    assert [one.text for one in chrome.find_elements(By.CSS_SELECTOR, "#findings .group > h3")][:4] == [
        "Idle Clip", "Lost Seed", "Stuck Batch", "Rogue Normaliser"
    ]  # fmt: skip
    sizes = "return [...document.querySelectorAll('figure > svg')].map(s => s.getBoundingClientRect().width)"
    widths = script(chrome, sizes)
    assert len(widths) == 7 and min(widths) > 300
    assert len(shown(chrome, "runs-table")) == 12
    script(chrome, "scrollTo(0, document.body.scrollHeight)")
    assert_quiet(chrome, demo_page)


def test_tables_are_filtered_as_one_types(chrome: Chrome, demo_page: Path) -> None:
    open_page(chrome, demo_page)
    field, count = tools(chrome, "runs-table")
    assert count.text == "12 runs"
    field.send_keys("TIS seed4")
    assert [row[0] for row in shown(chrome, "runs-table")] == ["tis-seed43", "tis-seed44", "tis-seed45"]
    assert count.text == "3 of 12 runs"
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("nothing like it")
    assert shown(chrome, "runs-table") == [] and count.text == "0 of 12 runs"
    field.clear()
    field.send_keys(" ")
    assert len(shown(chrome, "runs-table")) == 12
    assert_quiet(chrome, demo_page)


def test_tables_are_sorted_by_number_and_by_name(chrome: Chrome, demo_page: Path, demo_report: Audit) -> None:
    open_page(chrome, demo_page)
    heads = {head.text: head for head in chrome.find_elements(By.CSS_SELECTOR, "#runs-table thead th")}
    score, name = heads["Score"], heads["Run"]
    scores = sorted(run.score for run in demo_report.runs.values() if run.score is not None)
    for order, direction in ((scores, "ascending"), (scores[::-1], "descending")):
        score.find_element(By.TAG_NAME, "button").click()
        assert score.get_attribute("aria-sort") == direction
        assert [row[4] for row in shown(chrome, "runs-table")] == [f"{value:.4g}" for value in order]
    button = name.find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    assert score.get_attribute("aria-sort") is None and name.get_attribute("aria-sort") == "ascending"
    names = [row[0] for row in shown(chrome, "runs-table")]
    assert names == sorted(names) and len(names) == 12
    assert_quiet(chrome, demo_page)


def test_what_has_no_score_comes_last_both_ways(chrome: Chrome, tmp_path: Path) -> None:
    report = full_audit()
    values = dict(zip(report.runs, (10.0, 9.0, None, -1.5, 100.0, None, 0.25)))
    report.runs = {key: replace(run, score=values[key]) for key, run in report.runs.items()}
    open_page(chrome, write(to_html(report), tmp_path))
    button = chrome.find_element(By.XPATH, "//table[@id='runs-table']//button[text()='Score']")
    button.click()
    assert [row[4] for row in shown(chrome, "runs-table")] == ["-1.5", "0.25", "9", "10", "100", "–", "–"]
    button.click()
    assert [row[4] for row in shown(chrome, "runs-table")] == ["100", "10", "9", "0.25", "-1.5", "–", "–"]


def test_levels_are_switched_and_details_opened(chrome: Chrome, demo_page: Path) -> None:
    open_page(chrome, demo_page)
    visible = "return [...document.querySelectorAll('#findings article')].filter(e => e.offsetParent).length"
    assert script(chrome, visible) == 11
    info = chrome.find_element(By.XPATH, "//section[@id='findings']//button[starts-with(text(), 'info')]")
    info.click()
    assert script(chrome, visible) == 4 and info.get_attribute("aria-pressed") == "false"
    assert not chrome.find_element(By.ID, "group-check-6").is_displayed()
    info.click()
    assert script(chrome, visible) == 11
    evidence = chrome.find_element(By.CSS_SELECTOR, "#group-idle-clip details")
    assert evidence.get_attribute("open") is None
    evidence.find_element(By.TAG_NAME, "summary").click()
    assert evidence.find_element(By.TAG_NAME, "table").is_displayed()


def test_more_runs_than_are_named_are_found_in_the_table(chrome: Chrome, tmp_path: Path) -> None:
    runs = comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, tuple(range(40, 55)), updates=30)
    report = audit_of(with_metrics(runs, "grpo-*", idle()))
    open_page(chrome, write(to_html(report), tmp_path))
    chrome.find_element(By.CSS_SELECTOR, "#group-idle-clip a[data-find]").click()
    assert tools(chrome, "runs-table")[1].text == "15 of 30 runs"
    assert all(row[0].startswith("grpo-") for row in shown(chrome, "runs-table"))


def test_without_its_script_everything_is_shown(chrome: Chrome, demo_page: Path) -> None:
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(chrome, demo_page)
        assert not chrome.find_elements(By.CSS_SELECTOR, "main input, main button")
        details = chrome.find_elements(By.TAG_NAME, "details")
        assert details and all(one.get_attribute("open") is not None for one in details)
        assert all(one.is_displayed() for one in chrome.find_elements(By.CSS_SELECTOR, "#rules-table td"))
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def hostile(report: Audit) -> Audit:
    """The audit with hostile names wherever a tracker or a design could bring them in."""
    names = dict(zip(report.runs, HOSTILE))
    report.runs = {
        key: replace(run, label=names[key], name=names[key], url=f"https://h/?a={names[key]}", arm=HOSTILE[0])
        for key, run in report.runs.items()
    }
    report.findings = [harmed(finding, HOSTILE[place % 7]) for place, finding in enumerate(report.findings)]
    report.design = replace(report.design, arms={name: (key,) for key, name in names.items()}, metric=HOSTILE[1])
    report.project, report.chosen, report.notes = HOSTILE[0], HOSTILE[5], list(HOSTILE)
    return report


def harmed(finding: Finding, text: str) -> Finding:
    return replace(finding, title=text, detail=text, remedy=text, arms=(text,), evidence={text: text})


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_hostile_names_stay_text(chrome: Chrome, tmp_path: Path, width: int) -> None:
    path = write(to_html(hostile(full_audit())), tmp_path)
    open_page(chrome, path, width)
    assert script(chrome, "return window.hit") is None
    assert script(chrome, "return document.scripts.length") == 1
    assert script(chrome, "return document.querySelectorAll('img, svg[onload], [onmouseover]').length") == 0
    texts = {row[0] for row in shown(chrome, "runs-table")}
    assert texts == {safe_text(name) for name in HOSTILE}
    tools(chrome, "runs-table")[0].send_keys("<script>")
    assert script(chrome, "return window.hit") is None and len(shown(chrome, "runs-table")) >= 1
    assert_fits(chrome, width)
    assert_quiet(chrome, path)


def test_hostile_names_of_a_whole_audit_stay_text_in_its_pictures(chrome: Chrome, tmp_path: Path) -> None:
    name = "<script>window.hit=1</script>[red]x[/red]$x^2$ \x1b[31m"
    arms = {name: ONE_STEP, f"{name}-tis": ARMS["tis"]}
    report = audit_of(with_metrics(comparison(arms, (41, 42, 43)), "*[[]31m-seed*", idle()))
    path = write(to_html(report), tmp_path)
    open_page(chrome, path, PHONE)
    assert chrome.find_elements(By.CSS_SELECTOR, "#group-idle-clip figure svg")
    assert script(chrome, "return [window.hit, document.scripts.length]") == [None, 1]
    assert_fits(chrome, PHONE)
    assert_quiet(chrome, path)


@pytest.mark.parametrize("width", [320, PHONE, 768, DESK])
def test_the_page_never_scrolls_sideways(chrome: Chrome, demo_page: Path, width: int) -> None:
    open_page(chrome, demo_page, width)
    for one in chrome.find_elements(By.TAG_NAME, "summary"):
        script(chrome, "arguments[0].parentElement.open = true", one)
    assert_fits(chrome, width)
    if width == PHONE:
        size = (
            "return Math.min(...[...document.querySelectorAll('figure > svg text')]"
            ".map(t => t.getBoundingClientRect().height))"
        )
        assert script(chrome, size) >= 10, "words in pictures can be read on a phone"


def test_light_and_dark_follow_the_system(chrome: Chrome, demo_page: Path) -> None:
    found = {}
    for scheme in ("light", "dark"):
        open_page(chrome, demo_page, prefers_color_scheme=scheme)
        code = (
            "const style = (s, p) => getComputedStyle(document.querySelector(s))[p];"
            "return [style('body', 'backgroundColor'), style('body', 'color'), style('figure > svg text', 'fill')]"
        )
        found[scheme] = [sum(map(int, one[4:-1].split(","))) for one in script(chrome, code)]
    ground, ink, words = found["light"]
    assert ground > 700 and ink < 150 and words < 400
    ground, ink, words = found["dark"]
    assert ground < 100 and ink > 650 and words > 450


def test_on_paper_everything_is_open_and_nothing_to_click(chrome: Chrome, demo_page: Path) -> None:
    open_page(chrome, demo_page)
    script(
        chrome,
        "addEventListener('beforeprint', () => {"
        "window.before = [...document.querySelectorAll('details')].every(d => d.open)})",
    )
    printed = chrome.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.7})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF") and 3 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 25
    assert script(chrome, "return window.before") is True
    closed = "return [...document.querySelectorAll('details')].filter(d => d.open).length"
    assert script(chrome, closed) == 0, "afterwards they are closed again"
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert not any(one.is_displayed() for one in chrome.find_elements(By.CSS_SELECTOR, "nav, .tools, .more"))


def test_no_table_runs_off_the_paper(chrome: Chrome, demo_page: Path) -> None:
    open_page(chrome, demo_page, 720)
    script(chrome, "dispatchEvent(new Event('beforeprint'))")
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert_fits(chrome, 720)
    wide = "return [...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > 720).length"
    assert script(chrome, wide) == 0


def thousand() -> Audit:
    """An audit of 1,000 runs with long names: twenty times one of 50 runs with its faults."""
    arms = {f"arm-with-a-long-name-{n}": {"algorithm.gamma": 1 - 0.01 * n} for n in range(5)}
    runs = comparison({**arms, "arm-with-a-long-name-0": ONE_STEP}, tuple(range(10)))
    runs = with_metrics(runs, "*-0-seed*", idle())
    one = audit_of(with_config(runs, "*-1-seed*", {"data.seed": None}))
    many = replace_all(one, "0")
    for place in range(1, 20):
        more = replace_all(one, str(place))
        many.runs |= more.runs
        many.findings += more.findings
        many.coverage += more.coverage
        many.not_judged += more.not_judged
        many.traces = replace(many.traces, runs={**many.traces.runs, **more.traces.runs},
                              pairs=(*many.traces.pairs, *more.traces.pairs))  # fmt: skip
        many.design = replace(many.design, arms={**many.design.arms, **more.design.arms})
    return many


def replace_all(report: Audit, mark: str) -> Audit:
    """The audit with other keys, names and arms."""

    def keys(own: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{mark}-{key}" for key in own)

    return Audit(
        findings=[replace(f, runs=keys(f.runs), blames=keys(f.blames), title=f"{mark}: {f.title}")
                  for f in report.findings],
        coverage=[replace(entry, runs=keys(entry.runs), subject=f"{mark}: {entry.subject}")
                  for entry in report.coverage],
        not_judged=list(report.not_judged),
        runs={
            f"{mark}-{key}": replace(run, key=f"{mark}-{key}", label=f"{'sweep/' * 8}{mark}/{run.label}",
                                     arm=f"{mark}-{run.arm}", parts=(RunRef("p", f"{mark}-{key}"),),
                                     url=f"https://tracker.example/team/project/runs/{mark}{key}")
            for key, run in report.runs.items()
        },
        design=replace(report.design, arms={f"{mark}-{arm}": keys(own) for arm, own in report.design.arms.items()}),
        traces=replace(report.traces, runs={f"{mark}-{key}": trace for key, trace in report.traces.runs.items()}),
        project="thousand",
    )  # fmt: skip


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_thousand_runs_stay_small_and_open(chrome: Chrome, tmp_path: Path, width: int) -> None:
    report = thousand()
    text = to_html(report)
    assert len(report.runs) == 1000 and len(text.encode()) < FIVE_MEGABYTES
    path = write(text, tmp_path)
    open_page(chrome, path, width)
    assert len(shown(chrome, "runs-table")) == 1000
    field, count = tools(chrome, "runs-table")
    field.send_keys("/7/")
    assert count.text == "50 of 1000 runs"
    captions = [one.text for one in chrome.find_elements(By.TAG_NAME, "figcaption")]
    assert any("more comparisons not shown" in one for one in captions)
    assert any("more runs not shown" in one for one in captions)
    assert any("more arms not shown" in one for one in captions)
    assert_fits(chrome, width)
    assert_quiet(chrome, path)
