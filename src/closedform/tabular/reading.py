"""CSV and Parquet files as data frames, whole or in pieces; what is wrong with one, in one sentence.

CSV cells come as texts, so that a piece of a file means the same as the whole of it; `cells` makes numbers of them. Rows
count from 1, the header not counted.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = ",;\t|"
PIECE, PIECE_BYTES = 20_000, 2**23  # the most rows of a piece, and about the most bytes of a CSV file
SUFFIXES = {".parquet", ".pq"}
MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", "-"}  # in any case


class TableError(ValueError):
    """Something is wrong with a table; the message names the row and the column, and the file if there is one."""


def check_file(path: Path) -> None:
    """Raise a TableError unless there is a file that may be a table."""
    if path.is_dir():
        raise TableError(f"{path}: a folder; expected a CSV or Parquet file")
    if not path.is_file():
        raise TableError(f"{path}: there is no such file")
    with open(path, "rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise TableError(f"{path}: compressed with gzip; expected a CSV or Parquet file, so unpack it first")
    if path.stat().st_size == 0:
        raise TableError(f"{path}: the file is empty; expected a header and rows")


def pieces(
    path: Path, *, encoding: str = "utf-8-sig", rows: int = PIECE, columns: Collection[str] | None = None
) -> Iterator[pd.DataFrame]:
    """The table in pieces of at most so many rows, at constant memory; the index counts rows from 1. Columns that are named
    must be there, and the others are then not read."""
    path = Path(path)
    check_file(path)
    parquet = path.suffix.lower() in SUFFIXES
    reader = _parquet(path, rows, columns) if parquet else _csv(path, encoding, rows, columns)
    start = 1
    for piece in reader:
        if not len(piece):
            continue
        piece.index = range(start, start + len(piece))
        start += len(piece)
        yield piece


def whole(path: Path, *, encoding: str = "utf-8-sig") -> pd.DataFrame:
    """The whole table; at least two rows."""
    import pandas as pd

    parts = list(pieces(path, encoding=encoding))
    table = pd.concat(parts) if parts else pd.DataFrame()
    if len(table) < 2:
        raise TableError(f"{path}: the table has {len(table)} row{'s' * (len(table) != 1)}; expected at least 2")
    return table


def _parquet(path: Path, rows: int, columns: Collection[str] | None) -> Iterator[pd.DataFrame]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        _check_names(path, names, columns)
        for field in file.schema_arrow:
            if pyarrow.types.is_nested(field.type) and (columns is None or field.name in columns):
                raise TableError(f"{path}: column {field.name!r} holds {field.type}; expected one number or text a row")
        for batch in file.iter_batches(batch_size=rows, columns=[n for n in names if columns is None or n in columns]):
            yield batch.to_pandas()
    except (pyarrow.ArrowException, OSError) as bad:
        reason = str(bad).splitlines()[0].rstrip(".")
        raise TableError(f"{path}: not a whole Parquet file ({reason})") from None


def _csv(path: Path, encoding: str, rows: int, columns: Collection[str] | None) -> Iterator[pd.DataFrame]:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    except (LookupError, ValueError):  # no encoding, or one between bytes and bytes such as base64
        raise TableError(f"{path}: there is no encoding {encoding!r} for texts") from None
    separator = ","
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with open(path, encoding=encoding, newline="") as file:
            first = file.readline()
            if not first.strip():
                raise TableError(f"{path}: the first line is blank; expected a header and rows")
            separator = max(SEPARATORS, key=first.count)
            file.seek(0)
            lines = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next(lines)]
            _check_header(path, names, columns)
            places = {n: at for at, n in enumerate(names) if columns is None or n in columns}
            kept: list[list[str]] = []
            most = min(rows, _rows_of(path, PIECE_BYTES))
            for cells in _complete(path, lines, len(names)):
                kept.append([cells[at] for at in places.values()])
                if len(kept) == most:
                    yield _framed(kept, list(places))
                    kept = []
            if kept:
                yield _framed(kept, list(places))
    except UnicodeDecodeError:
        raise TableError(_undecodable(path, encoding, separator)) from None
    except csv.Error as bad:
        raise TableError(f"{path}: not a table (line {lines.line_num}: {bad})") from None
    finally:
        csv.field_size_limit(limit)


def _complete(path: Path, lines: Iterable[list[str]], width: int) -> Iterator[list[str]]:
    """The rows, each with a cell for every column. A blank line is a missing value where there is one column, unless the
    file ends with it; where there are more, it is passed over."""
    row = blank = 0
    for cells in lines:
        if len(cells) <= 1 and not "".join(cells).strip():
            blank += width == 1
            continue
        for _ in range(blank):
            yield [""]
        row, blank = row + blank + 1, 0
        if len(cells) != width:
            raise TableError(
                f"{path}: row {row} has {len(cells)} cell{'s' * (len(cells) != 1)}; expected {width}, one for every name "
                "in the header"
            )
        yield cells


def _framed(rows: list[list[str]], names: list[str]) -> pd.DataFrame:
    import pandas as pd

    columns = {}
    for name, cells in zip(names, zip(*rows)):
        stripped = [cell.strip() for cell in cells]
        columns[name] = pd.Series([None if is_missing(c) else c for c in stripped], dtype=object)
    return pd.DataFrame(columns)


def _check_header(path: Path, names: list[str], columns: Collection[str] | None) -> None:
    _check_names(path, names, columns)
    if all(is_number(name) for name in names):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise TableError(f"{path}: no header; expected names of columns in the first line, got the numbers {shown}")


def _rows_of(path: Path, size: int) -> int:
    """About how many rows of a CSV file take so many bytes, by the length of its first lines."""
    with open(path, "rb") as file:
        start = file.read(2**20)
    return max(1, size * (start.count(b"\n") + 1) // len(start))


def _check_names(path: Path, names: list[str], columns: Collection[str] | None) -> None:
    for at, name in enumerate(names, 1):
        if not name:
            raise TableError(f"{path}: column {at} of {len(names)} has no name in the header")
    doubled = [name for at, name in enumerate(names) if name in names[:at]]
    if doubled:
        places = [str(at) for at, name in enumerate(names, 1) if name == doubled[0]]
        raise TableError(
            f"{path}: the name {doubled[0]!r} stands over columns {' and '.join(places)}; expected one each"
        )
    for name in columns or ():
        if name not in names:
            raise TableError(f"{path}: there is no column {name!r}{did_you_mean(name, names)}; the model needs it")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is not there; empty where none is like it.

    >>> did_you_mean("Price", ["area", "price"]), did_you_mean("x", ["area"])
    (" (did you mean 'price'?)", '')
    """
    folded = {other.casefold().strip(): other for other in names}
    close = difflib.get_close_matches(name.casefold().strip(), folded, n=1)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with a table, said with the file that it is in."""
    try:
        yield
    except TableError as bad:
        raise TableError(f"{path}: {bad}") from None


def is_missing(text: str) -> bool:
    """Whether a text, without blanks around it, says that there is no value."""
    return text.lower() in MISSING


def is_number(text: str) -> bool:
    """Whether a text is a number as Python writes it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _undecodable(path: Path, encoding: str, separator: str) -> str:
    """Where the first bytes stand that are not of the encoding."""
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    names: list[str] = []
    with open(path, "rb") as file:
        for row, line in enumerate(file):
            try:
                text = line.decode(encoding)
                names = names or [n.strip() for n in next(csv.reader([text], delimiter=separator), [])]
            except UnicodeDecodeError as bad:
                column = line[: bad.start].count(separator.encode())
                shown = repr(names[column]) if column < len(names) else str(column + 1)
                where = f"row {row}, column {shown}" if row else f"the header, column {column + 1}"
                byte = line[bad.start : bad.start + 1].hex()
                return f"{path}: {where} is not {name} text (byte 0x{byte}); --encoding names another, such as latin-1"
    return f"{path}: not {name} text; --encoding names another, such as latin-1"
