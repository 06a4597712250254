"""That a browser draws the report with nothing but the file."""

import math
import re

import numpy as np
import pytest

from closedform.paper.report import panels, summary, write

from .browsing import Visit
from .report_tables import HOSTILE, METHODS, falling, hostile, save, small, sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("results"), sweep())


@pytest.fixture
def visit(browser, folder):
    opened = []

    def go(path=None, **options):
        opened.append(Visit(browser, path or write(folder), **options))
        return opened[-1]

    yield go
    for each in opened:
        assert each.complaints == []
        assert each.requests == [each.url]
        each.context.close()


def test_the_browser_draws_every_curve(visit):
    seen = visit()
    assert seen.count(".plot") == 8 + 2 + 2
    curves = '.plot[data-figure="0"]'
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
    here = f'.plot[data-figure="0"] g[data-style="{style}"]'
    assert seen.count(here) == 8
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert seen.count(here) == 0
    assert seen.count('.plot[data-figure="0"] g[data-style]') == 8 * (len(METHODS) - 1)
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
    assert seen.count('.plot[data-figure="0"] g[data-style]') == 8 * len(METHODS)


def test_pointing_shows_all_methods_values_and_settings(visit, folder):
    seen = visit()
    plot, tip = seen.page.locator(".plot").nth(1), seen.page.locator("#tip")
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
    seen.page.locator('.plot[data-figure="1"]').focus()
    for label in ("λ 0\n", "λ 0.01235\n", "λ 0.3\n"):
        seen.page.keyboard.press("ArrowRight")
        assert label in seen.page.locator("#tip").inner_text()


def test_a_diverged_method_says_so_under_the_pointer(visit):
    seen = visit()
    plot = seen.page.locator(".plot").first
    assert plot.locator("text.note").text_content() == "ridge: diverged"
    plot.hover(position={"x": 250, "y": 60})
    assert re.search(r"ridge\s+diverged", seen.page.locator("#tip").inner_text())


@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_switches_change_the_axes(visit, axis):
    seen = visit()
    button = seen.page.get_by_role("button", name=f"log {axis}")
    plot = seen.page.locator(".plot").first

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
    line = '.plot[data-figure="0"] .line'
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
    assert len({plot.bounding_box()["x"] for plot in seen.page.locator('.plot[data-figure="0"]').all()}) == 4


def test_a_browser_survives_the_odd_ones(visit, tmp_path):
    long = hostile()
    seen = visit(write(save(tmp_path / "hostile", small([0.1], optimizer=HOSTILE), long)), width=390)
    assert seen.page.locator("h1").inner_text() == HOSTILE
    dot, plot = (seen.page.locator(selector).bounding_box() for selector in (".plot .dot", ".plot"))
    assert plot["x"] + 100 < dot["x"] < plot["x"] + plot["width"] - 100
    assert seen.overflow() <= 390
    gone = visit(
        write(save(tmp_path / "gone", small([math.inf, math.nan], method=["l2", "proximal"], lam=[np.nan, 0.1])))
    )
    assert gone.page.locator(".plot").first.locator("text.note").text_content() == "l2, proximal: diverged"
    negative = visit(write(save(tmp_path / "negative", falling("l2", [1.0, 0.5, -0.5]))))
    assert "-" in "".join(negative.page.locator(".tick-y").all_text_contents())
