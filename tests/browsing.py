"""A page in a browser, for the tests of pages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Visit:
    """A page in the browser, with all that went wrong on it."""

    def __init__(self, browser, path: Path, width=1280):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, color_scheme="light")
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.url = path.as_uri()

    def count(self, selector):
        return self.page.locator(selector).count()

    def style(self, selector, name):
        return self.page.locator(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)

    def overflow(self):
        return self.page.evaluate("document.documentElement.scrollWidth")


@contextmanager
def visits(browser) -> Iterator[Callable[..., Visit]]:
    """Opens pages, and at the end sees that none complained or asked for anything but itself."""
    opened: list[Visit] = []

    def go(path: Path, **options) -> Visit:
        opened.append(Visit(browser, path, **options))
        return opened[-1]

    yield go
    for each in opened:
        assert each.complaints == []
        assert each.requests == [each.url]
        each.context.close()
