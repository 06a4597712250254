"""That a browser draws the report with nothing but the file."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from closedform.paper.report import panels, summary, write

from .browsing import visits
from .report_tables import HOSTILE, METHODS, falling, hostile, save, small, sweep

CURVES = '.plot[data-kind="curves"]'
HEADLINE = '.plot[data-kind="headline"]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("results"), sweep())


@pytest.fixture
def visit(browser, folder):
    with visits(browser) as go:
        yield lambda path=None, **options: go(path or write(folder), **options)


def test_the_browser_draws_every_curve(visit):
    seen = visit()
    assert seen.count(".plot") == 2 + 8 + 2 + 2
    curves = '.plot[data-kind="curves"]'
    assert seen.count(f"{curves} g[data-style]") == 8 * len(METHODS)
    assert seen.count(f"{curves} .band") == 8 * len(METHODS)
    box = seen.page.locator(f"{curves} .line").first.bounding_box()
    assert box["width"] > 150
    assert box["height"] > 100
    assert "NaN" not in seen.page.content()


def test_the_legend_hides_a_method_in_every_panel(visit):
    seen = visit()
    button = seen.page.get_by_role("button", name="Kalman")
    style = button.get_attribute("data-style")
    here = f'.plot[data-kind="curves"] g[data-style="{style}"]'
    assert seen.count(here) == 8
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert seen.count(here) == 0
    assert seen.count('.plot[data-kind="curves"] g[data-style]') == 8 * (len(METHODS) - 1)
    button.focus()
    seen.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert seen.count(here) == 8


def test_a_figures_own_legend_follows_in_figures_like_it(visit):
    seen = visit()
    buttons = seen.page.get_by_role("button", name="batch size 256")
    assert buttons.count() == 2
    style = buttons.first.get_attribute("data-style")
    buttons.first.click()
    assert buttons.nth(1).get_attribute("aria-pressed") == "false"
    assert seen.count(f'.plot g[data-style="{style}"]') == 0
    assert seen.count('.plot[data-kind="curves"] g[data-style]') == 8 * len(METHODS)


def test_pointing_shows_all_methods_values_and_settings(visit, folder):
    seen = visit()
    plot, tip = seen.page.locator(CURVES).nth(1), seen.page.locator("#tip")
    assert tip.is_hidden()
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] - 11, "y": 60})
    figure = panels.figures(*panels.read(folder))[0]
    said = tip.inner_text()
    assert f"step {int(figure.panels[1].lines[0].x[-1]):,}" in said
    entries = summary.best_settings(*panels.read(folder))[1].entries
    for entry, line in zip(entries, figure.panels[1].lines):
        assert entry.method.label in said
        assert entry.shown in said
        assert line.settings[0] in said
    seen.page.mouse.move(5, 5)
    assert tip.is_hidden()
    plot.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "step 1\n" in tip.inner_text()
    seen.page.keyboard.press("ArrowRight")
    assert f"step {int(figure.panels[1].lines[0].x[1]):,}" in tip.inner_text()
    seen.page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_pointing_names_the_value_that_was_tried(visit, tmp_path):
    table = small([0.5, 0.4, 0.3], method="proximal", lam=[0.0, 0.0123456789, 0.3])
    seen = visit(write(save(tmp_path, table)))
    seen.page.locator('.plot[data-kind="sensitivity"]').first.focus()
    for label in ("λ 0\n", "λ 0.01235\n", "λ 0.3\n"):
        seen.page.keyboard.press("ArrowRight")
        assert label in seen.page.locator("#tip").inner_text()


def test_a_diverged_method_says_so_under_the_pointer(visit):
    seen = visit()
    plot = seen.page.locator(CURVES).first
    assert plot.locator(".remark").text_content() == "ridge: diverged"
    plot.hover(position={"x": 250, "y": 60})
    assert re.search(r"ridge\s+diverged", seen.page.locator("#tip").inner_text())


@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_switches_change_the_axes(visit, axis):
    seen = visit()
    button = seen.page.get_by_role("button", name=f"log {axis}")
    plot = seen.page.locator(CURVES).first

    def look():
        ticks = [float(text.replace("k", "e3")) for text in plot.locator(f".tick-{axis}").all_text_contents()]
        return sorted(ticks), plot.locator(".line").first.get_attribute("d")

    before, path = look()
    was = button.get_attribute("aria-pressed")
    button.click()
    assert button.get_attribute("aria-pressed") != was
    after, other = look()
    linear, log = (before, after) if axis == "x" else (after, before)
    assert len(set(np.round(np.diff(linear), 9))) == 1
    assert log[0] > 0
    assert log[-1] / log[0] > (40 if axis == "x" else 4)
    assert len(set(np.round(np.diff(log), 9))) > 1
    assert path != other


def test_the_page_follows_the_colour_scheme_as_it_changes(visit):
    seen = visit()
    line = '.plot[data-kind="curves"] .line'
    light = seen.style("body", "backgroundColor"), seen.style(line, "stroke")
    seen.page.emulate_media(color_scheme="dark")
    for _ in range(50):  # the browser tells the page in its own time
        if seen.style(line, "stroke") != light[1]:
            break
        seen.page.wait_for_timeout(100)
    dark = seen.style("body", "backgroundColor"), seen.style(line, "stroke")
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(20, 23, 27)"
    assert light[1] != dark[1]
    seen.page.emulate_media(media="print")
    seen.page.wait_for_timeout(300)
    assert (seen.style("body", "backgroundColor"), seen.style(line, "stroke")) == light


def ticks(seen, selector):
    return [float(text) for text in seen.page.locator(selector).first.locator(".tick-y").all_text_contents()]


def test_the_first_figure_has_a_dot_and_an_interval_for_each_method_and_case(visit, folder):
    seen = visit()
    entries = [entry for facet in summary.best_settings(*panels.read(folder)) for entry in facet.entries]
    finite = [entry for entry in entries if not entry.diverged]
    assert seen.page.locator(".plot").first.get_attribute("data-kind") == "headline"
    assert seen.count(f"{HEADLINE} .dot") == seen.count(f"{HEADLINE} .bar") == len(finite)
    assert seen.count(f"{HEADLINE} .stop") == len(entries) - len(finite) > 0
    seen.page.locator(HEADLINE).first.hover(position={"x": 60, "y": 60})
    said = seen.page.locator("#tip").inner_text()
    first = summary.best_settings(*panels.read(folder))[0]
    assert "batch size 32" in said
    assert all(entry.shown in said for entry in first.entries)


def test_the_axes_follow_what_is_shown(visit, tmp_path):
    """A bad method widens the axes; hidden, it does not; alone, it has them for itself."""
    falls = 0.1 + 0.9 * np.exp(-1.5 * np.arange(20))
    table = pd.concat([falling("l2", falls), falling("ridge", falls * 0 + 1.2), falling("kalman", falls * 0.9)])
    seen = visit(write(save(tmp_path, table)))
    figure = panels.figures(*panels.read(tmp_path))[0]
    joined = seen.page.locator(CURVES).first
    whole = ticks(seen, CURVES)
    assert figure.log[0] <= whole[0]
    assert 0.6 < whole[-1] <= figure.log[1]
    before = joined.locator("[data-style='0'] .line").bounding_box()["height"]
    seen.page.get_by_role("button", name="ridge").click()
    assert max(ticks(seen, CURVES)) < 0.6
    assert max(ticks(seen, HEADLINE)) < 0.2
    assert joined.locator("[data-style='0'] .line").bounding_box()["height"] != before
    for name in ("ridge", "l2", "Kalman"):
        seen.page.get_by_role("button", name=name).click()
    assert min(ticks(seen, CURVES)) > 1.0


def test_a_dot_far_worse_than_most_stands_at_the_edge(visit, tmp_path):
    methods = ["l2", "ridge", "proximal", "kalman"]
    seen = visit(write(save(tmp_path, small([0.1, 9.0, 0.09, 0.08], method=methods))))
    assert seen.count(f"{HEADLINE} .off") == 1
    assert max(ticks(seen, HEADLINE)) < 0.2


def test_the_page_joins_the_reaches_as_the_pictures_do(visit, folder):
    seen = visit()
    figure = panels.figures(*panels.read(folder))[0]
    low, high = ticks(seen, CURVES)[0], ticks(seen, CURVES)[-1]
    plot = seen.page.locator(CURVES).first
    places = [float(node.get_attribute("y")) - 4 for node in plot.locator(".tick-y").all()]
    # two ticks and their places give the whole logarithmic axis, which ends 8 below the top and 24 above the foot
    slope = (math.log(high) - math.log(low)) / (places[-1] - places[0])
    at = [math.exp(math.log(low) + slope * (y - places[0])) for y in (230 - 24, 8)]
    assert at == pytest.approx(figure.log, rel=1e-3)


def test_many_remarks_do_not_collide(visit, tmp_path):
    methods = [method.key for method in METHODS]
    table = pd.concat([falling(key, [1.0, math.inf]) for key in methods[:4]] + [falling("kalman", [1.0, 0.5])])
    seen = visit(write(save(tmp_path, table)), width=390)
    remark = seen.page.locator(f"{CURVES} .remark").bounding_box()
    picture = seen.page.locator(f"{CURVES} > svg").bounding_box()
    assert remark["y"] >= picture["y"] + picture["height"] - 1
    assert remark["x"] + remark["width"] <= 390


def test_a_phone_stacks_the_panels_and_does_not_scroll_sideways(visit):
    seen = visit(width=390)
    assert seen.overflow() <= 390
    lefts = {plot.bounding_box()["x"] for plot in seen.page.locator(".plot").all()}
    assert len(lefts) == 1
    seen.page.locator(".plot").nth(2).hover(position={"x": 300, "y": 60})
    assert seen.page.locator("#tip").bounding_box()["width"] <= 390
    assert seen.overflow() <= 390
    table = seen.page.locator(".scroll")
    assert table.evaluate("node => node.scrollWidth > node.clientWidth")
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    assert len({plot.bounding_box()["x"] for plot in seen.page.locator('.plot[data-kind="curves"]').all()}) == 4


def test_a_browser_survives_the_odd_ones(visit, tmp_path):
    long = hostile()
    seen = visit(write(save(tmp_path / "hostile", small([0.1], optimizer=HOSTILE), long)), width=390)
    assert seen.page.locator("h1").inner_text() == HOSTILE
    dot, plot = (seen.page.locator(selector).bounding_box() for selector in (f"{CURVES} .dot", CURVES))
    assert plot["x"] + 100 < dot["x"] < plot["x"] + plot["width"] - 100
    assert seen.overflow() <= 390
    gone = visit(
        write(save(tmp_path / "gone", small([math.inf, math.nan], method=["l2", "proximal"], lam=[np.nan, 0.1])))
    )
    assert gone.page.locator(CURVES).first.locator(".remark").text_content() == "l2, proximal: diverged"
    negative = visit(write(save(tmp_path / "negative", falling("l2", [1.0, 0.5, -0.5]))))
    assert "-" in "".join(negative.page.locator(".tick-y").all_text_contents())
