"""Prose: links, figures, names, lengths, and words that should not be there. Run by `make docs`, not by `make test`.

What the pages say was measured is a test (test_docs.py, test_project.py, ...), as is their code."""

import functools
import importlib
import importlib.util
import operator
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import closedform as cf

from .scripts import load

ROOT = Path(__file__).parents[1]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def sentences():
    return load("benchmarks/sentences.py")


def prose(text):
    """Without code, in blocks or in lines."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`|^ {4}.*$", "", text, flags=re.M)


@functools.cache
def anchors(path):
    """What GitHub and MyST make of the headings."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    slugs = []
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        slugs.append(slug + (f"-{slugs.count(slug)}" if slug in slugs else ""))
    return slugs


def links(path):
    return re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme:  # nothing is fetched
            assert parts.scheme == "https", link
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), link
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if parts.fragment:
            assert parts.fragment in anchors(target), f"{page.name}: {link}; there are {anchors(target)}"


def test_every_link_in_a_page_of_the_site_stays_in_it():
    """What Sphinx does not copy, it cannot link."""
    for page in DOCS.rglob("*.md"):
        for link in links(page):
            target = (page.parent / urlsplit(link).path).resolve()
            assert urlsplit(link).scheme or target.is_relative_to(DOCS), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_left_to_be_written(page):
    """The word below is what a page says where a figure or a table is still to come."""
    assert "TODO" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["classification", "fno", "iv", "qm9", "tabular", "trainers"])
def test_comments_in_code_are_not_cut_off(page):
    """A block of code is 88 characters wide on a screen of 1280 pixels; a comment past that is on no one's screen."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```|((?:^ {4}[^\n]*\n)+)", text, flags=re.S | re.M)
    lines = [re.sub("^ {4}", "", line) for fenced, indented in blocks for line in (fenced or indented).splitlines()]
    comments = [line for line in lines if "# " in line]
    assert len(comments) >= 3
    assert [line for line in comments if len(line) > 88] == []


@pytest.mark.parametrize("page", ["choosing", "faq"])
def test_no_advice_without_a_number_that_is_checked(page):
    """Every decimal and per cent is marked, but for settings and definitions."""
    text = sentences().MARKED.sub("", prose((DOCS / f"{page}.md").read_text(encoding="utf-8")))
    text = re.sub(r"(Theorem|Propositions?|and|\[)\s?\d\.\d(\]|\b)", "", text)
    for known in ("within 1.25 times the best", "one 0.1 off", "difference of 2 %", "best one's 95 % interval"):
        text = text.replace(known, "")
    text = re.sub(r"^ *\| 0\.[01]+ \|", "", text, flags=re.M)  # learning rates, at the head of a row
    assert re.findall(r"[^\n]*(?:\d+\.\d+|\d\s?%|\de-\d)[^\n]*", text) == []


def test_every_number_about_the_theory_is_marked():
    """Decimals and per cents that are not: versions of theorems, settings in code, and the table of the benchmark."""
    text = sentences().MARKED.sub("", (DOCS / "theory.md").read_text(encoding="utf-8"))
    text = text.replace(load("benchmarks/tables.py").diagnose_overhead(), "")
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"`[^`]*`|^ {4}.*$", "", text, flags=re.M)
    text = re.sub(r"(Theorem|Propositions?)\s\d\.\d(\sand\s\d\.\d)?", "", text)
    text = re.sub(r"beta = 0\.5|a layer 0\.1 off|95 % intervals|those of 50 %\sand 80 % cover", "", text)
    assert "Appendix B" in text  # what is checked is still there
    assert "recursions predict" in text
    assert re.findall(r"\d+\.\d+|\d\s?%|\de-\d", text) == []


def test_the_figures_about_the_theory_are_there_and_small():
    page = DOCS / "theory.md"
    text = page.read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) == 8
    for figure in figures:
        file = DOCS / figure
        assert 5_000 < file.stat().st_size < (100_000 if file.suffix == ".svg" else 80_000), figure
    assert (DOCS / "figures" / "theory" / "diagnosis.txt").exists()


def test_the_names_in_the_theory_exist():
    from closedform import theory

    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    names = re.findall(r"`theory\.([\w.]+)", text)
    assert len(names) >= 9
    for name in names:
        member = theory
        for part in name.split("."):
            member = getattr(member, part)


def test_the_readme_is_short_and_starts_with_the_picture():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 200
    assert readme.index("![") < readme.index("```python") < readme.index("make demo") < readme.index("## Results")


def test_the_functions_named_beside_the_equations_exist():
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "equations.md").read_text()
    functions = re.findall(r"`((?:linalg|reference|training|lambdas|theory|class_systems)\.\w+)", page)
    assert len(functions) >= 25
    for name in functions:
        module, function = name.split(".")
        home = "closedform" if module in ("training", "theory") else "closedform.solver"
        assert hasattr(importlib.import_module(f"{home}.{module}"), function), name
    named = set(re.findall(r"`iv\.([\w.]+)", page))
    assert len(named) >= 10
    for name in named:
        assert operator.attrgetter(name)(importlib.import_module("closedform.iv")), name
    for name in re.findall(r"`(?:cf\.)?(Ridge|Proximal|Ema|Kalman|ClosedFormLinear)\b", readme + page):
        assert hasattr(cf, name)


def test_the_reference_has_everything_public():
    listed = {
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"automodule:: (\S+)", page.read_text())
    }
    for name in listed:
        assert importlib.util.find_spec(name), name
    public = [getattr(cf, name) for name in cf.__all__]
    assert {getattr(thing, "__module__", None) or thing.__name__ for thing in public} <= listed


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 100


def test_the_examples_are_listed_where_people_look_and_take_quick():
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+\.py)` \|", page, re.M)) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    for path in EXAMPLES.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert '"--quick"' in code, path.name
