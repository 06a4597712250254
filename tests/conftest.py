"""One thread: the problems are tiny, and threads that wait for each other make them slow on a busy machine. And an answer to
Ctrl-C, which a shell takes from what it starts in the background: some tests are about it."""

import shutil
import signal

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a table and the model that `closedform train` made of it, and the outcome of that training."""
    from closedform.tabular import training

    from .table_cases import homes

    here = tmp_path_factory.mktemp("trained")
    homes().to_csv(here / "homes.csv", index=False)
    return here, training.train(here / "homes.csv", "price", here / "model", categorical=["zip"], max_iter=25)


@pytest.fixture(scope="module")
def browser():
    """A browser, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()
