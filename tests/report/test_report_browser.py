"""The page in a real browser: no errors, no requests, and sliders, hover and colours that do what they say.

Skipped where playwright or a Chromium is missing; `CHROMIUM` names one that is not on the path.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from report_runs import EVIL, RUNS

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def visit(browser, workshop, name):
    """Opens a report; whatever the page complains about or asks for is kept."""
    page = browser.new_page(viewport={"width": 1120, "height": 900})
    page.trouble, page.asked = [], []
    page.on("console", lambda message: page.trouble.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(workshop.page(name).report.path.resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
    return page


@pytest.fixture(scope="module")
def page(browser, workshop):
    """The report of a DIFFormer on nodes, which takes seconds to load: every test sets what it looks at."""
    found = visit(browser, workshop, "nodes")
    yield found
    assert found.trouble == []
    assert [url for url in found.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def move(page, slider, value):
    page.evaluate(
        "([id, value]) => { const one = document.getElementById(id); one.value = value; "
        "one.dispatchEvent(new Event('input')); }",
        [slider, value],
    )


@pytest.mark.parametrize(
    "name",
    ["graphs", *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS if name not in ("nodes", "graphs"))],
)
def test_pages_load_without_errors_and_without_a_network(browser, workshop, name):
    page = visit(browser, workshop, name)
    assert page.trouble == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.locator("#metric-curves .main-svg").count() > 0
    assert page.locator("#canvas-0 .points path").count() > 5
    page.close()


def test_names_of_facts_stand_on_one_line(page):
    # Whether a name would be broken hangs on fonts and zoom; that it must not be does not.
    cells = page.evaluate(
        "() => [...document.querySelectorAll('#run table')[0].rows].map(row => [row.cells[0].textContent, "
        "getComputedStyle(row.cells[0]).whiteSpace])"
    )
    assert ["train/valid/test", "nowrap"] in cells
    assert {style for _, style in cells} == {"nowrap"}


def test_the_layer_slider_moves_points(page):
    where = "() => document.querySelector('#canvas-0').data.at(-1).x.slice()"
    move(page, "layer-0", 3)
    last = page.evaluate(where)
    assert page.inner_text("#layer-name-0") == "layer 3"
    move(page, "layer-0", 0)
    assert page.inner_text("#layer-name-0") == "input"
    assert page.evaluate(where) != last
    assert "Latent pairs begin with layer 1" in page.inner_text("#counts-0")
    move(page, "layer-0", 3)


def test_the_threshold_slider_takes_pairs_away(page):
    drawn = "() => document.querySelector('#canvas-0').data.slice(1, 3).reduce((n, one) => n + one.x.length / 3, 0)"
    page.check("#pairs-0")
    move(page, "threshold-0", 0)
    many = page.evaluate(drawn)
    move(page, "threshold-0", 100)
    few = page.evaluate(drawn)
    assert many > few >= 1
    page.uncheck("#pairs-0")
    assert page.evaluate(drawn) == 0
    page.check("#edges-0")
    assert page.evaluate("() => document.querySelector('#canvas-0').data[0].x.length") > 0


def test_hover_shows_the_instance_and_labels_are_text(page):
    page.select_option("#colour-0", label="class")
    page.locator("#canvas-0").scroll_into_view_if_needed()
    place = page.evaluate(
        """() => { const plot = document.querySelector('#canvas-0'); const box = plot.getBoundingClientRect();
        for (const one of plot.data) { const at = (one.customdata || []).indexOf(59); if (at < 0) continue;
          const { xaxis, yaxis } = plot._fullLayout;
          return [box.x + xaxis._offset + xaxis.d2p(one.x[at]), box.y + yaxis._offset + yaxis.d2p(one.y[at])]; } }"""
    )
    page.mouse.move(*place)
    page.wait_for_function("() => document.querySelector('#card-0 strong')")
    shown = page.inner_text("#card-0")
    assert "class" in shown
    assert "correctness" in shown
    # Points may lie on each other; whichever was hit shows itself. The evil one is asked for outright.
    page.evaluate("() => document.querySelector('#canvas-0').emit('plotly_hover', { points: [{ customdata: 59 }] })")
    assert f"{EVIL} & co" in page.inner_text("#card-0")
    assert EVIL in page.locator("#canvas-0 .legendtext").all_text_contents()
    assert EVIL in "".join(
        page.locator("#confusion .ytick text, #confusion .yaxislayer-above text").all_text_contents()
    )
    assert EVIL in page.inner_text("#predictions")
    assert page.evaluate("() => document.querySelectorAll('script').length") == 3


def test_errors_can_be_sorted_and_downloaded(page):
    cells = "(n) => [...document.querySelectorAll('#errors tbody tr')].map((row) => row.cells[n].textContent)"
    page.click("#errors th:nth-child(4)")
    up = [float(v) for v in page.evaluate(cells, 3)]
    assert len(up) > 3
    assert up == sorted(up)
    page.click("#errors th:nth-child(4)")
    assert [float(v) for v in page.evaluate(cells, 3)] == up[::-1]
    page.click("#errors th:nth-child(1)")
    names = page.evaluate(cells, 0)
    assert names == page.evaluate("(names) => [...names].sort((a, b) => a.localeCompare(b))", names)
    with page.expect_download() as started:
        page.click("#errors a[download]")
    text = Path(started.value.path()).read_text(encoding="utf-8")
    assert text.startswith("instance,target,prediction,probability,")
    assert len(text.strip().splitlines()) == 1 + len(up)


def test_ten_classes_have_ten_colours(page):
    """Colours of ten classes differ by at least 20 in CIE Lab, from each other and from what is unknown."""
    colours = page.evaluate("() => JSON.parse(document.getElementById('data').textContent).colours")
    assert len(colours) == 10
    labs = [lab(colour) for colour in colours]
    for i, one in enumerate(labs):
        for other in labs[:i]:
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 20


def lab(colour):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb)
    xyz = (
        0.4124 * r + 0.3576 * g + 0.1805 * b,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        0.0193 * r + 0.1192 * g + 0.9505 * b,
    )
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_colours_follow_the_choice(page):
    names = "() => document.querySelector('#canvas-0').data.slice(3).map((one) => one.name)"
    page.select_option("#colour-0", label="class")
    assert page.evaluate(names)[0] == "unknown"
    page.select_option("#colour-0", label="correctness")
    assert set(page.evaluate(names)) <= {"right", "wrong", "unknown"}


def test_legends_cover_nothing_on_a_phone(browser, workshop):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(workshop.page("nodes").report.path.resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    for plot in ("metric-curves", "within-plot", "energy-plot", "reliability"):
        legend, *areas = page.evaluate(
            """(id) => [`#${id} .legend .bg`, `#${id} .plotbg rect, #${id} .bglayer rect, #${id} .plot`].flatMap((at) =>
            [...document.querySelectorAll(at)].map((one) => { const b = one.getBoundingClientRect();
            return [b.top, b.bottom]; }))""",
            plot,
        )
        assert areas, plot
        for area in areas:
            assert legend[0] >= area[1] - 1 or legend[1] <= area[0] + 1, plot
    # Words of a table stay whole; what does not fit is scrolled to.
    for cell in ("#run td", "#energy tbody tr:last-child td"):
        assert page.evaluate(f"() => document.querySelector('{cell}').getClientRects()[0].height") < 40
    assert len(set(page.evaluate("() => JSON.parse(document.getElementById('data').textContent).colours"))) == 10
    page.close()


def luminance(colour):
    parts = [int(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(page, scheme):
    """Texts have a contrast of at least 4.5 to their ground, which is what accessibility guidelines ask for."""
    page.emulate_media(color_scheme=scheme)
    for _ in range(2):
        back = luminance(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        for selector in ("body", "th", "nav a", ".note", "#counts-0"):
            ink = luminance(page.evaluate(f"() => getComputedStyle(document.querySelector('{selector}')).color"))
            contrast = (max(ink, back) + 0.05) / (min(ink, back) + 0.05)
            assert contrast >= 4.5, selector
        assert page.evaluate("() => document.querySelector('#metric-curves')._fullLayout.font.color") == page.evaluate(
            "() => getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
        )
        page.click("#theme")  # and the other way round
