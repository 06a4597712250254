"""The pages: what they say is what was measured, and their code runs. (Links and prose: check_pages.py.)"""

import doctest
import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch

import closedform as cf

from .scripts import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MEASURED = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("choosing", "differential", "faq", "fno", "performance", "swap")),
]


def sentences():
    return load("benchmarks/sentences.py")


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.stem)
def test_numbers_in_sentences_are_the_committed_results(page):
    text = page.read_text(encoding="utf-8")
    marks = list(sentences().MARKED.finditer(text))
    assert len(marks) == text.count("<!--") - len(re.findall("<!-- (?:begin: .*|end) -->", text)) >= 3
    assert [wrong for mark in marks if (wrong := sentences().check(mark))] == []


@pytest.mark.parametrize(
    "page", ["docs/fno", "docs/differential", "docs/classification", "docs/performance", "docs/swap", "README"]
)
def test_a_page_is_what_the_committed_results_make_of_it(page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    rebuild = load("benchmarks/rebuild.py")
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    assert len(rebuild.PART.findall(text)) == text.count("<!-- begin: ") == text.count("<!-- end -->") >= 1
    assert rebuild.rebuilt(text) == text
    key = "qm9.sgd.32.kalman"
    wrong, right = (f"{a}<!-- {key} --> and {b}<!-- {key} / {key} -->" for a, b in (("0.01", "0.8"), ("0.06", "1.0")))
    assert rebuild.rebuilt(wrong) == right, "as many digits as there were"
    stale = "<!-- begin: table fno_peer -->\n\n| old |\n\n<!-- end -->"
    assert rebuild.rebuilt(stale) == stale.replace("| old |", load("benchmarks/tables.py").fno_peer())


def test_a_wrong_number_is_noticed():
    module = sentences()
    (mark,) = module.MARKED.finditer("0.0574<!-- qm9.sgd.32.kalman -->")
    assert "it is 0.05733" in module.check(mark)
    (mark,) = module.MARKED.finditer("34.6 %<!-- imagenet.cross_entropy.end -->")
    assert module.check(mark) is None
    with pytest.raises(KeyError, match="no 'calman' there; known are l2"):
        module.value("qm9.sgd.32.calman")


def test_the_rules_that_are_advised_exist():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    space = {"cf": cf, "opt": optimizer, "relative": cf.lambdas.relative, "follow_lr": cf.lambdas.follow_lr}
    advised = re.findall(r"`(cf\.[A-Z]\w+\([^`]*\))`", (DOCS / "choosing.md").read_text(encoding="utf-8"))
    assert len(advised) >= 5
    phi, y = torch.randn(16, 3), torch.randn(16, 2)
    for rule in advised:
        head = cf.ClosedFormLinear(3, 2, rule=eval(rule, space))  # the page is ours
        head.solve(phi, y)
        assert int(head.step) == 1, rule


def test_the_five_minutes_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "start.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 6
    space = {}
    for block in blocks:
        exec(block, space)  # the page is ours
    assert float(space["error"]) < 0.01
    assert (tmp_path / "model.pt").is_file()
    assert type(space["model"][2]) is space["nn"].Linear
    assert "Advice" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # torch's exporter warns of its own future
def test_the_page_about_export_runs(tmp_path, monkeypatch):
    for module in ("onnxruntime", "onnxscript", "safetensors"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 5
    space = {}
    for block in blocks:
        exec(block, space)  # the page is ours, and asserts what it says
    written = {path.name for path in tmp_path.iterdir()}
    assert {"plain.pt", "model.pt2", "model.onnx", "model.safetensors"} <= written
    assert float((space["model"](space["x"]) - space["y"]).square().mean()) < 0.1


def test_every_example_is_in_the_gallery():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    examples = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    assert sorted(re.findall(r"`python examples/(\w+)\.py`", page)) == examples
    assert sorted(re.findall(r"\(figures/gallery/(\w+)\.svg\)", page)) == examples


def test_the_pictures_of_the_gallery_are_drawn_from_what_the_examples_returned(tmp_path):
    pytest.importorskip("matplotlib")
    gallery = load("benchmarks/gallery.py")
    results = json.loads(gallery.RESULTS.read_text(encoding="utf-8"))
    assert set(results) == set(gallery.PICTURES)
    for name, values in results.items():
        drawn = gallery.draw(name, values, tmp_path).read_text(encoding="utf-8")
        shown = (gallery.FIGURES / f"{name}.svg").read_text(encoding="utf-8")
        words, committed = (re.findall(r">([^<>\n]+)</text>", svg) for svg in (drawn, shown))
        assert words == committed, name
        assert len(shown) < 20_000


def test_every_command_has_its_place_on_the_page():
    typer = pytest.importorskip("typer")
    from closedform.cli import application

    command = typer.main.get_command(application())
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## closedform (\w+)$", page, re.M)) == set(command.commands)
    assert set(re.findall(r"^\| `closedform paper (\w+)` \|", page, re.M)) == set(command.commands["paper"].commands)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what other people's libraries have to say about each other
@pytest.mark.parametrize("library", ["lightning", "skorch", "transformers"])
def test_the_page_about_trainers_runs(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    setting, *blocks = re.findall(r"```python\n(.*?)```", (DOCS / "trainers.md").read_text(encoding="utf-8"), re.S)
    (block,) = (block for block in blocks if f"closedform.integrations.{library}" in block)
    space = {"__name__": "page"}
    exec(setting + block, space)  # the page is ours
    if library == "transformers":
        model, tokens = space["classifier"].eval(), space["tokens"]
        assert int(model.classifier.step) == 48
        with torch.no_grad():
            assert float((model(tokens).logits.argmax(1) == (tokens[:, 0] >= 32)).double().mean()) > 0.9
        return
    model = space["module"].model if library == "lightning" else space["net"].module_
    assert int(model[2].step) >= 12
    with torch.no_grad():
        assert float((model(space["x"]) - space["y"]).square().mean()) < 0.2


def test_the_first_picture_is_drawn_from_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    load("benchmarks/picture.py").draw(tmp_path / "learning.svg")
    drawn, shown = (
        path.read_text(encoding="utf-8") for path in (tmp_path / "learning.svg", DOCS / "figures/learning.svg")
    )

    def words(svg):
        return re.findall(r">([^<>\n]+)</text>", svg)

    assert words(drawn) == words(shown)
    assert "ours: Kalman, falling rate" in words(shown)


def test_docstrings_become_restructured_text():
    docstrings = load("docs/docstrings.py")
    assert doctest.testmod(docstrings).failed == 0
    lines = [
        "A `Rule` for |W|, coef_.", "", "lam: how", "    much", "beta: `a|b_`", "", "    x = 1", "", "    y = 2", "",
        "Then::", "", "    a <- b if", "", "| a | b |", "|---|---|", "| c | d |", "",
        "Attributes", "----------", "loss_ : one", "", ">>> 1", "1",
    ]  # fmt: skip
    docstrings.convert(None, "", "", None, None, lines)
    assert lines == [
        r"A `Rule` for \|W\|, coef\_.", "", "* `lam`: how", "  much", "* `beta`: `a|b_`", "",
        ".. code-block:: python", "", "    x = 1", "", "    y = 2", "", "Then:", "",
        ".. code-block:: text", "", "    a <- b if", "",
        ".. list-table::", "   :header-rows: 1", "", "   * - a", "     - b", "   * - c", "     - d", "",
        "**Attributes**", "", "* `loss_`: one", "", ">>> 1", "1", "",
    ]  # fmt: skip


# ---- The built site ----------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a page loads, where it leads, and what can be linked in it."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.leads, self.ids = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values["id"]} if values.get("id") else set()
        if tag == "a" and values.get("href"):
            self.leads.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.append(values.get("href"))
        elif values.get("src"):
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", folder / "trees", DOCS]
    built = subprocess.run([*command, folder / "html"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_site_needs_no_network_and_its_links_lead_somewhere(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 15
    for path, page in pages.items():
        for loaded in page.loads:
            assert not urlsplit(loaded).netloc, f"{path.name} loads {loaded}"
            assert (path.parent / unquote(urlsplit(loaded).path)).is_file() or loaded.startswith("data:"), loaded
        for link in page.leads:
            parts = urlsplit(link)
            if parts.scheme or link in ("#", ""):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"
    for style in site.rglob("*.css"):
        for loaded in re.findall(r"url\([\"']?([^\"')]+)", style.read_text(encoding="utf-8")):
            assert loaded.startswith("data:") or (style.parent / loaded).is_file(), f"{style.name} loads {loaded}"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_on_a_telephone(site, scheme):
    """No page is wider than the screen, nothing is fetched, no script fails."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium")
    wrong = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
        page.on(
            "request",
            lambda request: wrong.append(request.url) if "://" in request.url.replace("file://", "") else None,
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for path in sorted(site.glob("*.html")):
            page.goto(path.as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            wrong += [f"{path.name} is {width} wide"] if width > 390 else []
        page.goto((site / "equations.html").as_uri())
        page.evaluate("document.fonts.ready")
        fonts = page.evaluate("[...document.fonts].filter(font => font.status == 'loaded').map(font => font.family)")
        wrong += [] if any("STIX Two Math" in font for font in fonts) else [f"formulas have no font, only {fonts}"]
        browser.close()
    assert wrong == []


@pytest.mark.slow
def test_code_can_be_copied_and_search_finds_the_commands(site, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto((site / "start.html").as_uri())
    block = page.locator("div.highlight").nth(1)
    block.hover()
    block.locator("button.copy").click()
    page.wait_for_function("document.querySelectorAll('button.copy')[1].textContent == 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == block.locator("pre").text_content().rstrip("\n")
    commands = ("closedform train", "claims", "closedform paper qm9")
    for words, target in (*((words, "commands.html") for words in commands), ("onnx", "export.html")):
        page.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
        page.wait_for_selector("#search-results li")
        assert target in page.locator("#search-results li a").first.get_attribute("href"), words
    context.close()
