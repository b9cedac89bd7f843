"""The report in a real browser: what is drawn, what can be switched, and who can use it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitsect.reports.html.page import page as html_of
from bitsect.reports.reading import read_story
from run_folders import HOSTILE, Written, promise

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: `apt-get install chromium` brings one")

OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ["stem", "blocks.0.conv1", "blocks.0.conv2", "blocks.1.conv1", "blocks.1.conv2", "head"]
PLOTS = ("plot-curve", "plot-scores", "plot-pairs", "plot-weights", "plot-inputs")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of runs in several states."""
    place = tmp_path_factory.mktemp("pages")
    many = [f"bert.encoder.layer.{i // 8}.attention.self.part{i % 8}" for i in range(193)]
    written = {
        "whole": Written(place / "whole", NAMES).all(promise=promise()),
        "hostile": Written(place / "hostile", list(HOSTILE), model="<img src=x onerror=alert(1)>").all(),
        "many": Written(place / "many", many).all(),
        "begun": Written(place / "begun", NAMES),
        "one": Written(place / "one", NAMES[:1]).layers().answer().scores().pairs().values(),
    }
    found = {}
    for name, run in written.items():
        found[name] = place / f"{name}.html"
        found[name].write_text(html_of(read_story(run.done())), encoding="utf-8")
    return found


class Opened:
    """A page, with everything that went wrong on it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **options})
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def drawn(self, *ids: str) -> Opened:
        """Draw all figures, and wait for these."""
        self.page.evaluate("bitsectDrawAll()")
        for each in ids:
            self.page.wait_for_selector(f"#{each} .main-svg", state="attached")
        return self

    def text(self, where: str) -> str:
        return str(self.page.locator(where).first.text_content())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()


def test_every_figure_is_drawn_when_somebody_comes_near_and_nothing_is_fetched(
    browser: Any, paths: dict[str, Path]
) -> None:
    with Opened(browser, paths["whole"]) as opened:
        for each in PLOTS:
            opened.page.locator(f"#{each}").scroll_into_view_if_needed()
            opened.page.wait_for_selector(f"#{each} .main-svg", state="attached")
        assert opened.page.locator("#plot-pairs .heatmaplayer image").count() == 1
        assert opened.page.locator("#plot-scores .point").count() == len(NAMES)
        assert opened.page.locator("#plot-curve .point").count() == 5
        assert opened.page.locator("#plot-curve .textpoint").all_text_contents() == [
            "float",
            "all int8",
            "all int4",
        ]
        assert opened.page.locator("#plot-weights .bars .point").count() > 20
        assert opened.faults == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_hovering_names_the_layer(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"]) as opened:
        opened.drawn("plot-scores", "plot-pairs")
        opened.page.locator("#plot-scores").scroll_into_view_if_needed()
        box = opened.page.locator("#plot-scores .point").nth(2).bounding_box()
        opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        opened.page.wait_for_selector("#plot-scores .hovertext")
        assert any(name in opened.text("#plot-scores .hovertext") for name in NAMES)
        assert opened.faults == []


def test_metric_order_pairs_and_cost_can_be_switched(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"]) as opened:
        opened.drawn(*PLOTS)
        page = opened.page
        title = "#plot-scores .ytitle"
        assert "damage" in opened.text(title)
        page.select_option("#metric", label="sqnr at int8")
        page.wait_for_function("document.querySelector('#plot-scores .ytitle').textContent.includes('sqnr')")
        first = page.locator("#plot-scores .xtick").first
        assert first.text_content() == NAMES[0]
        page.check("input[name=order][value=score]", force=True)
        page.wait_for_function(f"document.querySelector('#plot-scores .xtick').textContent === {NAMES[-1]!r}")
        assert page.locator(".worst:visible h3").inner_text().endswith("int4")
        page.select_option("#pair-table", index=1)
        assert page.locator(".worst:visible h3").inner_text().endswith("int8")
        before = page.locator("#plot-pairs .ytick").all_text_contents()
        page.check("input[name=pair-order][value=clustered]", force=True)
        page.wait_for_timeout(300)
        after = page.locator("#plot-pairs .ytick").all_text_contents()
        assert sorted(after) == sorted(before)
        assert after != before
        assert opened.text("#plot-curve .xtitle").startswith("latency")
        page.check("input[name=curve][value=size]", force=True)
        page.wait_for_function("document.querySelector('#plot-curve .xtitle').textContent.startsWith('size')")
        assert opened.faults == []


def test_a_layer_is_chosen_by_click_by_keys_and_by_list(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"]) as opened:
        page = opened.drawn(*PLOTS).page
        page.locator("#piece-2").click()
        assert page.input_value("#layer-choice") == "2"
        assert opened.text("#chosen").startswith(NAMES[2])
        page.locator(".strip-drawing").focus()
        page.keyboard.press("ArrowRight")
        assert page.input_value("#layer-choice") == "3"
        assert page.get_attribute("#piece-3", "aria-selected") == "true"
        page.keyboard.press("End")
        assert page.input_value("#layer-choice") == str(len(NAMES) - 1)
        page.click("#layer-before")
        assert opened.text("#chosen").startswith(NAMES[-2])
        page.select_option("#layer-choice", "0")
        assert "chosen-row" in page.get_attribute("#table tbody tr[data-place='0']", "class")
        assert "4 bits" in opened.text("#note-weights")
        assert opened.text("#note-inputs") == "left in float"
        assert opened.faults == []


def test_the_strip_is_wide_by_what_is_asked(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"]) as opened:
        widths = (
            "[...document.querySelectorAll('.strip-drawing rect')].map(r => Number(r.getAttribute('width')))"
        )
        timed = opened.page.evaluate(widths)
        assert timed == sorted(timed)  # later layers take longer here
        opened.page.check("input[name=strip][value='0']", force=True)
        alike = opened.page.evaluate(widths)
        assert max(alike) - min(alike) < 0.01


def test_the_table_is_sorted_and_filtered(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"]) as opened:
        page = opened.page
        names = "[...document.querySelectorAll('#table tbody tr:not([hidden]) th')].map(r => r.textContent)"
        page.click("#table thead button:text('Weights')")
        page.click("#table thead button:text('Weights')")
        assert page.evaluate(names) == NAMES[::-1]
        assert page.get_attribute("#table th:has(button:text('Weights'))", "aria-sort") == "descending"
        page.click("#table thead button:text('Layer')")
        assert page.evaluate(names) == sorted(NAMES)
        page.fill("#filter", "conv1 int4")
        assert set(page.evaluate(names)) == {name for name in NAMES[1::2] if "conv1" in name}
        assert " of 6 layers" in opened.text("#filtered")
        page.fill("#filter", "")
        assert len(page.evaluate(names)) == len(NAMES)


def test_the_theme_follows_the_system_until_somebody_chooses(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"], color_scheme="dark") as opened:
        page = opened.drawn("plot-curve").page
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(ground)
        page.click("#theme")
        light = page.evaluate(ground)
        assert dark != light
        colour = "getComputedStyle(document.querySelector('#plot-curve .xtick text')).fill"
        page.wait_for_function(f"{colour} === getComputedStyle(document.body).color")
        page.click("#theme")
        assert page.evaluate(ground) == dark
        assert opened.faults == []


@pytest.mark.parametrize("name", ["whole", "hostile", "many", "begun", "one"])
def test_names_are_shown_and_never_run(browser: Any, paths: dict[str, Path], name: str) -> None:
    with Opened(browser, paths[name]) as opened:
        opened.page.evaluate("bitsectDrawAll()")
        opened.page.wait_for_timeout(200)
        assert opened.page.evaluate("window.hacked") is None
        assert opened.faults == []
        if name == "hostile":
            assert opened.page.locator("#table code").all_text_contents() == list(HOSTILE)
            shown = opened.page.locator("#plot-scores .xtick").all_text_contents()
            assert shown[0] == HOSTILE[0]
            assert shown[3] == HOSTILE[3]
            assert shown[-1] == HOSTILE[-1]  # no colour


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("whole", {"color_scheme": "light"}),
        ("whole", {"color_scheme": "dark", "viewport": PHONE}),
        ("begun", {}),
    ],
)
def test_no_serious_fault_of_accessibility(
    browser: Any, paths: dict[str, Path], name: str, options: dict[str, Any]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    with Opened(browser, paths[name], **options) as opened:
        opened.page.evaluate("bitsectDrawAll()")
        opened.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        opened.page.wait_for_timeout(300)
        # Figures are images with a name; what they are drawn of says nothing to a screen reader.
        found = axe.Axe().run(opened.page, {"exclude": [[".svg-container"]]}).response["violations"]
        serious = {
            each["id"]: [node["html"][:200] for node in each["nodes"][:3]]
            for each in found
            if each["impact"] in ("serious", "critical")
        }
        assert serious == {}


@pytest.mark.parametrize("name", ["whole", "many", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(browser: Any, paths: dict[str, Path], name: str) -> None:
    with Opened(browser, paths[name], viewport=PHONE) as opened:
        opened.page.evaluate("bitsectDrawAll()")
        opened.page.wait_for_timeout(300)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert opened.page.locator("#plot-curve .textpoint").count() == 0  # labels would lie over each other


def test_it_prints_in_light_colours_with_every_figure(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"], color_scheme="dark") as opened:
        page = opened.page
        page.emulate_media(media="print", color_scheme="dark")
        for each in PLOTS:
            page.wait_for_selector(f"#{each} .main-svg", state="attached")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator(".contents").is_hidden()
        assert page.pdf(format="A4")[:4] == b"%PDF"


def test_without_scripts_the_numbers_are_there(browser: Any, paths: dict[str, Path]) -> None:
    with Opened(browser, paths["whole"], java_script_enabled=False) as opened:
        assert "It keeps 99% of its accuracy" in opened.text("h1")
        assert opened.page.locator("#table tbody tr").count() == len(NAMES)
        assert opened.page.locator(".strip-drawing rect").count() == len(NAMES)
        assert opened.page.locator(".switch:visible").count() == 0
