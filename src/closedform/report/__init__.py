"""One self-contained HTML page from any results folder."""
