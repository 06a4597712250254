"""Figure 1 as a page: its mathematics is the package's, and it answers to mouse, finger and keyboard in a real browser."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from closedform.paper.experiments import landscape, theory
from closedform.paper.report import write
from closedform.paper.report.page import frame

from .report_tables import save, small

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to drive a browser")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Open the page, with no network; at the end nothing may have gone wrong in it."""
    contexts, problems = [], []

    def open_page(width=1100, html=None, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if request.url.startswith("http") else None)
        file = tmp_path / "landscape.html"
        file.write_text(landscape.page() if html is None else html, encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def curve(page):
    return page.get_attribute(".cfl-map path.cfl-curve", "d")


def paths(page):
    return [page.get_attribute(f".cfl-map path.cfl-{name}", "d") for name in ("both", "along")]


def centre(page, selector, index=0):
    box = page.locator(selector).nth(index).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_page_computes_what_the_package_does(visit):
    """Both paths, the curve and the loss, for both activations and with regularisation."""
    page = visit()
    picture = landscape.data()
    for activation, beta in (("relu", 0.0), ("tanh", 0.0), ("relu", 0.5), ("tanh", 0.5)):
        page.select_option("select", activation)
        page.locator('[data-name="beta"]').fill(str(beta))
        shown = page.evaluate(
            "(() => { const { paths, state } = document.querySelector('section').cfLandscape;"
            " return { paths, state }; })()"
        )
        assert shown["state"]["beta"] == beta
        expected = replace(picture, activation=activation, beta=beta)
        start = landscape.START_W, landscape.START_THETA, landscape.RATE, landscape.STEPS
        for name, path in (("both", expected.descend_both(*start)), ("along", expected.descend_curve(*start[1:]))):
            points = torch.tensor(shown["paths"][name], dtype=torch.float64)
            assert points.shape == (landscape.STEPS + 1, 2)
            assert (points - torch.stack([path.theta, path.W], 1)).abs().max() < 1e-9
        value = page.evaluate("document.querySelector('section').cfLandscape.loss(0.7, -1.3)")
        assert value == pytest.approx(float(expected.loss(0.7, -1.3)), rel=1e-12)
        text = page.inner_text(".cfl-status")
        assert f"in both {float(expected.descend_both(*start).loss[-1]):.4f}" in text


def test_dragging_a_point_moves_the_curve_and_both_paths(visit):
    page = visit()
    before, image = [curve(page), *paths(page)], page.get_attribute(".cfl-map image", "href")
    x, y = centre(page, ".cfl-data .cfl-handle .cfl-dot")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y - 30, steps=4)
    page.mouse.up()
    assert all(a != b for a, b in zip([curve(page), *paths(page)], before))
    assert page.get_attribute(".cfl-map image", "href") != image
    assert centre(page, ".cfl-data .cfl-handle .cfl-dot") == pytest.approx((x + 40, y - 30), abs=2)
    after = curve(page)
    page.mouse.move(x + 45, y - 26, steps=2)  # released: it no longer follows, though the pointer is still on it
    assert curve(page) == after
    page.click(".cfl-reset")
    assert [curve(page), *paths(page)] == before


def test_it_opens_where_the_solved_path_is_better_and_keeps_the_other_case(visit):
    page = visit()

    def ends():
        return page.evaluate(
            "(() => { const { paths, loss } = document.querySelector('section').cfLandscape;"
            " return ['along', 'both'].map(name => { const [theta, W] = paths[name].at(-1); return loss(W, theta); }); })()"
        )

    along, both = ends()
    assert along < 0.6 * both
    assert "The path along the curve ends lower." in page.inner_text(".cfl-status")
    buttons = page.locator("[data-preset]")
    assert [one.get_attribute("aria-pressed") for one in buttons.all()] == ["true", "false"]
    buttons.nth(1).click()
    along, both = ends()
    assert both < along
    assert page.input_value("select") == "relu"
    assert [one.get_attribute("aria-pressed") for one in buttons.all()] == ["false", "true"]
    buttons.first.click()
    assert page.input_value("select") == "tanh"


def test_dragging_by_touch(visit):
    page = visit(width=390, has_touch=True, is_mobile=True)
    dot = page.locator(".cfl-data .cfl-handle").nth(1)
    dot.scroll_into_view_if_needed()
    before, scrolled = curve(page), page.evaluate("scrollY")
    x, y = centre(page, ".cfl-data .cfl-handle .cfl-dot", 1)
    session = page.context.new_cdp_session(page)

    def touch(kind, *points):
        touches = [{"x": a, "y": b} for a, b in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
        page.wait_for_timeout(30)

    touch("touchStart", (x, y))
    for k in range(1, 7):  # upwards, which would scroll the page were the finger not on a point
        touch("touchMove", (x + 2 * k, y - 10 * k))
    touch("touchEnd")
    assert curve(page) != before
    assert page.evaluate("scrollY") == scrolled
    assert centre(page, ".cfl-data .cfl-handle .cfl-dot", 1) == pytest.approx((x + 12, y - 60), abs=2)


def test_moving_theta(visit):
    """The slider by keyboard, and the start itself by mouse: the paths follow, the curve stays."""
    page = visit()
    before = curve(page), paths(page)
    page.focus('[data-name="theta"]')
    page.keyboard.press("ArrowRight")
    assert page.inner_text("label:has([data-name=theta]) output") == f"{landscape.START_THETA + 0.05:.2f}"
    assert curve(page) == before[0]
    assert all(a != b for a, b in zip(paths(page), before[1]))
    x, y = centre(page, ".cfl-map .cfl-handle .cfl-dot")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 50, steps=3)
    page.mouse.up()
    assert float(page.input_value('[data-name="theta"]')) < landscape.START_THETA
    assert float(page.input_value('[data-name="W"]')) < landscape.START_W


def test_points_answer_to_arrow_keys(visit):
    page = visit()
    dot = page.locator(".cfl-data .cfl-handle").first
    label = dot.get_attribute("aria-label")
    dot.focus()
    page.keyboard.press("ArrowUp")
    moved = dot.get_attribute("aria-label")
    first, second = (float(re.search(r", (-?[\d.]+);", text).group(1)) for text in (label, moved))
    assert second == pytest.approx(first + 0.1, abs=0.011)


def test_a_diverging_descent_is_said_to_be_one(visit):
    page = visit()
    page.select_option("select", "relu")
    page.locator('[data-name="lr"]').fill("0.3")
    assert "it diverged" in page.inner_text(".cfl-status")
    assert "NaN" not in "".join(paths(page))


def test_a_curve_that_diverges_is_said_to_do_so_too(visit):
    """No slider reaches it, since the gradient along the curve is tame; a state that is set by hand does."""
    page = visit()
    page.select_option("select", "tanh")
    page.evaluate("document.querySelector('section').cfLandscape.state.lr = 1e9")
    page.focus('[data-name="theta"]')
    page.keyboard.press("ArrowRight")
    text = page.inner_text(".cfl-status")
    assert text.count("it diverged") == 2
    assert re.search(r"along the curve [\d.]+ \(it diverged", text)


def set_state(page, **state):
    """Change the state behind the page's back, and let a slider draw it."""
    page.evaluate("state => Object.assign(document.querySelector('section').cfLandscape.state, state)", state)
    page.locator('[data-name="beta"]').fill(str(state.get("beta", 0.5)))


def test_the_nearest_point_is_taken(visit):
    """Where the circles that catch a pointer overlap, whichever was drawn last."""
    for held in range(3):
        page = visit()
        set_state(page, x=[0.0, 0.15, 0.3], y=[1.0, 1.0, 1.0])
        before = page.evaluate("document.querySelector('section').cfLandscape.state.x.slice()")
        x, y = centre(page, ".cfl-data .cfl-handle .cfl-dot", held)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y + 60, steps=4)
        page.mouse.up()
        state = page.evaluate(
            "(() => { const { x, y } = document.querySelector('section').cfLandscape.state; return [x, y]; })()"
        )
        assert [value < 0.9 for value in state[1]] == [i == held for i in range(3)]
        assert state[0] == pytest.approx(before, abs=0.03)
    page.mouse.move(x, y - 150)  # far from every point, a press takes none
    page.mouse.down()
    page.mouse.move(x, y - 100, steps=3)
    page.mouse.up()
    assert page.evaluate("document.querySelector('section').cfLandscape.state.y") == state[1]


def test_what_is_said_of_relu_is_so(visit):
    """On a branch where all features are zero the loss is constant; elsewhere it falls with beta, and is flat without."""
    page = visit()
    page.select_option("select", "relu")
    widget = "document.querySelector('section').cfLandscape"
    loss = f"theta => {widget}.loss({widget}.best(theta), theta)"
    for x, beta, words, falls in (
        ([-1.0, -0.5, -1.2], 0.5, "constant", False),
        ([-1.0, -0.5, -1.2], 0.0, "constant", False),
        ([1.0, 0.5, -1.2], 0.5, "falls for ever", True),
        ([1.0, 0.5, -1.2], 0.0, "sign of θ only", False),
    ):
        set_state(page, x=x, y=[1.0, 0.8, 0.5], beta=beta)
        near, far = (page.evaluate(loss, theta) for theta in (1.5, 3.0))
        assert (far < near - 1e-6) == falls
        assert words in page.inner_text(".cfl-status")
        others = {"constant", "falls for ever", "sign of θ only"} - {words}
        assert not any(other in page.inner_text(".cfl-status") for other in others)


@pytest.mark.parametrize("width", [390, 1100])
def test_nothing_is_wider_than_the_screen(visit, width):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark(visit):
    """By the system's setting, and by a page that sets its own theme, at once."""
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    ink = "getComputedStyle(document.querySelector('.cf-landscape')).color"
    assert light.evaluate(ink) != dark.evaluate(ink)
    assert light.get_attribute(".cfl-map image", "href") != dark.get_attribute(".cfl-map image", "href")
    before = light.get_attribute(".cfl-map image", "href")
    light.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert light.evaluate(ink) == dark.evaluate(ink)
    light.wait_for_function(
        "before => document.querySelector('.cfl-map image').getAttribute('href') !== before", arg=before
    )


def test_two_sections_in_one_page_do_not_meet(visit):
    other = landscape.section(replace(landscape.data(), activation="relu"))
    page = visit(html=f"<!doctype html><html><body>{landscape.section()}{other}</body></html>")
    curves = page.locator(".cfl-map path.cfl-curve")
    assert curves.count() == 2
    before = [curves.nth(i).get_attribute("d") for i in range(2)]
    assert before[0] != before[1]
    page.locator(".cfl-data .cfl-handle").first.focus()
    page.keyboard.press("ArrowUp")
    assert curves.nth(0).get_attribute("d") != before[0]
    assert curves.nth(1).get_attribute("d") == before[1]


def test_the_command_writes_both(tmp_path):
    written = landscape.run(tmp_path)
    assert sorted(path.name for path in written) == ["landscape.html", "landscape.png"]
    assert all(path.stat().st_size > 10_000 for path in written)
    text = (tmp_path / "landscape.html").read_text(encoding="utf-8")
    assert "{{" not in text
    assert not re.search(r"(src|href)=\"", text)
    assert "Content-Security-Policy" in text
    script = re.search(r'<script type="application/json">(.*?)</script>', text, re.S)
    assert json.loads(script.group(1))["x"] == landscape.data().x.tolist()


def test_in_a_report(visit, tmp_path):
    """As a section of the page on a sweep, under that page's policy: its script runs, another one does not."""
    folder = save(tmp_path / "results", small([0.1]))
    alien = "<script>document.body.dataset.alien = 1</script>"
    report = write(folder, sections=[landscape.section()]).read_text(encoding="utf-8")
    page = visit(html=report)
    assert page.locator(".plot svg").count() > 0  # the sweep's own charts
    before = curve(page)
    dot = page.locator(".cfl-data .cfl-handle").first
    dot.scroll_into_view_if_needed()
    x, y = centre(page, ".cfl-data .cfl-handle .cfl-dot")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y - 30, steps=4)
    page.mouse.up()
    assert curve(page) != before
    assert page.evaluate("document.querySelector('.cfl-map image').getAttribute('href').length") > 1000
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100
    (tmp_path / "alien.html").write_text(report.replace("</main>", alien + "</main>"), encoding="utf-8")
    other = page.context.new_page()  # whose complaints are expected
    other.goto((tmp_path / "alien.html").as_uri())
    assert other.evaluate("document.body.dataset.alien") is None
    assert other.locator(".cfl-map path.cfl-curve").get_attribute("d") == before


def test_a_report_without_sections_is_what_it_was(tmp_path):
    folder = save(tmp_path / "results", small([0.1]))
    assert "img-src" not in write(folder).read_text(encoding="utf-8")
    assert "img-src data:" in write(folder, sections=["<section></section>"]).read_text(encoding="utf-8")


def test_the_page_of_the_theory(visit, tmp_path):
    """Pictures as data beside the interactive one."""
    picture = landscape.draw(tmp_path / "landscape.png")
    page = visit(
        html=frame("The theory", "One.\n\nTwo <b>.", [landscape.section(), theory._figure(picture, "Two descents")])
    )
    assert page.evaluate("document.querySelector('figure img').naturalWidth") > 500
    assert page.locator("header p").all_inner_texts() == ["One.", "Two <b>."]
    before = curve(page)
    page.locator(".cfl-data .cfl-handle").first.focus()
    page.keyboard.press("ArrowUp")
    assert curve(page) != before
