"""Raw columns as features: numbers, booleans, categories, dates and gaps, one rule per kind.

    number     gaps filled with the median; (v - mean) / deviation; with gaps an indicator column
    boolean    0 or 1, also for yes and no; gaps as above
    category   one column per value, one column for all rare values, a gap as a value of its own
    date       days, standardised like numbers; one column per month and per weekday; gaps as above
    left out   empty, constant, a different text in nearly every row, or only rare values

scikit-learn's `SimpleImputer` and `StandardScaler` compute medians and scales on all rows, labelled or not; labels are
not used. `Preprocessing.to_dict` gives plain numbers and texts; `Preprocessing.transform` encodes new rows.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from difformer.data.own.cell_values import is_gap, number
from difformer.data.own.table import Floats, Values, check_columns, frame_table
from difformer.errors import DAMAGE, DataError, UserError, listed

Kind = Literal["number", "boolean", "category", "date", "left out"]

RARE = 0.01  # share of the rows below which a category is grouped with others
MOST_CATEGORIES = 50
MANY_TEXTS = 20  # different texts, more than half of all, from which a column holds names, not categories
LARGE = 1e15  # numbers beyond this are probably codes or mistakes
SINGLE = 2.0**-23  # how far a feature in single precision may be off, relative to its size
GAP, OTHER = "(missing)", "(other)"
VERSION = 1

_TRUTH = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0}
_ISO = "iso"
_DATE_FORMATS = (_ISO, "%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%d %b %Y", "%b %d, %Y")
_AMOUNT = re.compile(r"(?=.*[$€£¥%]|.*\d,\d{3}\b)[-+$€£¥ ]*\d[\d,]*(\.\d+)? *[$€£¥%]?\Z")  # $1,234.50, 12%
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Encoding:
    """What becomes of one column."""

    name: str
    kind: Kind
    reason: str = ""  # why it is left out
    gaps: int = 0  # missing cells in training; if there are any, an indicator is added
    fill: float = 0.0  # what they are filled with, in the units of the column
    shift: float = 0.0  # subtracted from numbers and days
    scale: float = 1.0  # numbers and days are divided by it
    categories: tuple[str, ...] = ()  # the values that have a column each
    rare: tuple[str, ...] = ()  # the values that share one
    format: str = ""  # of dates
    months: tuple[int, ...] = ()  # those that have a column each
    weekdays: tuple[int, ...] = ()  # likewise, Monday is 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns; a column that is left out has no categories, so none."""
        if self.kind in ("left out", "category"):
            return tuple(f"{self.name}={value}" for value in (*self.categories, *[OTHER] * bool(self.rare)))
        parts = [f"{self.name} month={month}" for month in self.months]
        parts += [f"{self.name} {_DAYS[day]}" for day in self.weekdays]
        return (self.name, *parts, *[f"{self.name} missing"] * bool(self.gaps))

    def becomes(self) -> str:
        """The encoded columns in words."""
        if self.kind == "left out":
            return self.reason
        if self.kind == "category":
            other = f", {len(self.rare)} rare ones in one column" if self.rare else ""
            return f"{len(self.categories)} column{'s' * (len(self.categories) != 1)} of 0 and 1{other}"
        words = [{"boolean": "0 or 1", "date": "days"}.get(self.kind, "1 column")]
        words += ["standardised"] if (self.shift, self.scale) != (0.0, 1.0) else []
        words += [f"{len(self.months)} months"] if self.months else []
        words += [f"{len(self.weekdays)} weekdays"] if self.weekdays else []
        words += [f"gaps filled with {self._shown(self.fill)} and marked"] if self.gaps else []
        return ", ".join(words)

    def _shown(self, value: float, within: float = 0.0) -> str:
        if self.kind != "date":
            return written(value, within)
        minutes = round(value * 1440)  # single precision tells minutes apart, not seconds
        return (datetime(1, 1, 1) + timedelta(minutes=minutes - 1440)).isoformat(" ")[:16].removesuffix(" 00:00")

    def encode(self, values: Values) -> tuple[Floats, list[str]]:
        """Encoded columns ``[N, len(outputs)]`` of new cells, and notes on what training did not have."""
        if self.kind == "category":
            cells = [cell or GAP for cell in _texts(values)]
            place = {value: i for i, value in enumerate(self.categories)}
            hot = np.eye(len(place) + 1)[[place.get(cell, -1) for cell in cells], : len(self.outputs)]
            unseen = Counter(cell for cell in cells if cell not in place and cell not in self.rare)
            shown = ", ".join(f"{value!r} ({count} row{'s' * (count > 1)})" for value, count in unseen.most_common(4))
            how = "counted as other" if self.rare else "left without a category"
            return hot, [f"column {self.name!r}: {shown} did not occur in training; {how}"] if unseen else []
        raw, notes = self.measure(values), []
        missing = np.isnan(raw)
        if (count := int(missing.sum())) and not self.gaps:
            gaps = f"{count} cell{'s' * (count > 1)} missing, which training did not have"
            notes = [f"column {self.name!r}: {gaps}; filled with {self._shown(self.fill)}"]
        columns = [(np.where(missing, self.fill, raw) - self.shift) / self.scale]
        if self.kind == "date":
            month, weekday = _calendar(np.where(missing, 1, raw))
            columns += [(month == each) & ~missing for each in self.months]
            columns += [(weekday == each) & ~missing for each in self.weekdays]
        return np.stack([*columns, *[missing] * bool(self.gaps)], 1).astype(np.float64), notes

    def measure(self, values: Values) -> Floats:
        """Numbers, 0 and 1, or days, NaN if missing; an error names the row of a cell that is something else."""
        cells: list[Any] = [] if isinstance(values, np.ndarray) else _texts(values)
        for row, text in enumerate(cells):
            value = _days(text, self.format) if self.kind == "date" else number(text)
            if value is None and self.kind == "boolean":
                value = _TRUTH.get(text.lower())
            if value is None and not is_gap(text):
                day = datetime(2024, 3, 31).strftime(self.format.replace(_ISO, "%Y-%m-%d"))
                expected = {"date": f"a date such as {day}", "boolean": "yes or no"}.get(self.kind, "a number")
                problem = f"expected {expected} as in training, got {text!r}; correct the cell, or leave it empty"
                raise DataError(problem, row=row, column=self.name)
            cells[row] = value
        found = np.array(cells or values, dtype=np.float64)
        if np.isinf(found).any():
            row = int(np.isinf(found).argmax())
            raise DataError("expected a finite number, got infinity", row=row, column=self.name)
        return found

    def decode(self, encoded: Floats) -> list[str]:
        """The cells that encoded rows stand for; rare categories cannot be told apart."""
        if self.kind == "category":
            values = ["" if value == GAP else value for value in (*self.categories, OTHER)]
            return [values[i] if row[i] > 0.5 else "" for i, row in zip(encoded.argmax(1), encoded, strict=True)]
        raw = encoded[:, 0] * self.scale + self.shift
        missing = encoded[:, -1] > 0.5 if self.gaps else np.zeros(len(raw), bool)
        if self.kind == "boolean":
            shown = ["yes" if value > 0.5 else "no" for value in raw]
        else:
            shown = list(map(self._shown, raw.tolist(), (SINGLE * self.scale * np.abs(encoded[:, 0])).tolist()))
        return ["" if gap else cell for cell, gap in zip(shown, missing, strict=True)]


def written(value: float, within: float = 0.0) -> str:
    """The shortest number that differs by `within` at most: six significant digits, all of a whole number."""
    if abs(value) <= within:
        return "0"
    size = math.floor(math.log10(abs(value))) if value else 0
    if not -5 < size < 15:
        return f"{value:.6g}"
    most = max(0, 5 - size)
    places = next((p for p in range(-size, most) if abs(round(value, p) - value) <= within), most)
    text = f"{round(value, places):.{max(places, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Preprocessing:
    """How the columns of a table become features; see `difformer.data.own.preprocessing`.

    Args:
        columns: One encoding per column of the table, in its order.
        rows: How many rows it was fitted on.
        notes: What a reader should know, one sentence each.
    """

    columns: tuple[Encoding, ...]
    rows: int
    notes: tuple[str, ...] = ()

    @staticmethod
    def fit(
        columns: Sequence[tuple[str, Values]],
        *,
        standardize: bool = True,
        categories: Sequence[str] = (),
        dates: Sequence[str] = (),
    ) -> Preprocessing:
        """Recognise the columns and fit their encodings.

        Args:
            columns: Name and cells per column: an array of numbers, NaN where missing, or texts, empty where missing.
            standardize: Bring numbers to mean 0 and deviation 1, as days always are.
            categories: Columns to read as categories.
            dates: Columns to read as dates.

        Raises:
            DataError: If a number is infinite, or a column of dates holds something else.
        """
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        notes: list[str] = []
        forced: dict[str, Kind] = {**dict.fromkeys(dates, "date"), **dict.fromkeys(categories, "category")}
        found = [_recognise(name, values, forced.get(name), notes) for name, values in columns]
        if left := [f"{e.name!r} ({e.reason})" for e in found if e.kind == "left out"]:
            notes.append(f"columns left out: {', '.join(left[:8])}{', …' if len(left) > 8 else ''}")
        if measured := [i for i, encoding in enumerate(found) if encoding.kind in ("number", "boolean", "date")]:
            matrix = np.stack([found[i].measure(columns[i][1]) for i in measured], 1)
            imputer = SimpleImputer(strategy="median").fit(matrix)
            scaler = StandardScaler().fit(imputer.transform(matrix))
            for i, *of in zip(measured, imputer.statistics_, scaler.mean_, scaler.scale_, strict=True):
                fill, mean, deviation = map(float, of)
                scaled = found[i].kind == "date" or (standardize and found[i].kind == "number")
                scale: Any = {"shift": mean, "scale": deviation} if scaled else {}
                found[i] = replace(found[i], fill=fill, **scale)
        return Preprocessing(tuple(found), len(columns[0][1]) if columns else 0, tuple(notes))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded columns, in order."""
        return tuple(name for column in self.columns for name in column.outputs)

    def groups(self) -> dict[str, list[str]]:
        """The encoded columns that come from each column of the table."""
        return {column.name: list(column.outputs) for column in self.columns if column.outputs}

    def transform(self, table: Any) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Features ``[N, F]`` of raw rows, and notes on categories, gaps and columns that training did not have.

        Args:
            table: A data frame, or the cells of every column by name.

        Raises:
            DataError: If a column is missing, or holds something other than in training.
        """
        names = {str(name): i for i, name in enumerate(table.columns if hasattr(table, "columns") else table)}
        used = {column.name: column for column in self.columns if column.kind != "left out"}
        if not used:
            raise DataError("has no column of features left")
        check_columns([*used], names)
        if hasattr(table, "columns"):
            frame = frame_table(table)
            frame.read([i for name, i in names.items() if name not in used or frame.textual[i]], gaps=True)
            table = {name: frame.cells[names[name]] for name in used}
        known = {column.name for column in self.columns}
        new = [name for name in names if name not in known]
        notes = [f"columns that training did not have are left out: {listed(new)}"] if new else []
        encoded = [column.encode(table[name]) for name, column in used.items()]
        notes += [note for _, said in encoded for note in said]
        return np.concatenate([part for part, _ in encoded], axis=1).astype(np.float32), tuple(notes)

    def original(self, x: Any) -> list[dict[str, str]]:
        """The cells of encoded rows by column, in the units of the table; a rare category is ``(other)``."""
        encoded = np.asarray(x.to_dense().numpy(force=True) if hasattr(x, "to_dense") else x, dtype=np.float64)
        if encoded.ndim != 2 or encoded.shape[1] != len(self.feature_names):
            raise UserError(f"x: expected rows of {len(self.feature_names)} columns, got shape {list(encoded.shape)}")
        used = [column for column in self.columns if column.outputs]
        ends = np.cumsum([len(column.outputs) for column in used])[:-1]
        parts = zip(used, np.split(encoded, ends, axis=1), strict=True)
        found = {column.name: column.decode(part) for column, part in parts}
        return [dict(zip(found, cells, strict=True)) for cells in zip(*found.values(), strict=True)]

    def describe(self) -> str:
        """One line per column: its name, its kind, the number of missing cells, and the columns it becomes."""
        rows: list[tuple[str, ...]] = [("column", "read as", "missing", "becomes")]
        rows += [(c.name, c.kind, f"{c.gaps:,}" if c.gaps else "", c.becomes()) for c in self.columns]
        widths = [*(max(len(row[i]) for row in rows) for i in range(3)), 0]
        return "\n".join("  ".join(map(str.ljust, row, widths)) for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """All values in types that JSON and TOML support."""
        return {"version": VERSION, **json.loads(json.dumps(asdict(self)))}

    @staticmethod
    def read(path: str | os.PathLike[str], feature_names: Sequence[str]) -> Preprocessing:
        """Read the output of `to_dict` from a JSON file; it must produce these features."""
        try:
            found = Preprocessing.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except DAMAGE as error:
            raise DataError(f"cannot be read: {error}", path=path) from error
        if found.feature_names != tuple(feature_names):
            raise DataError("belongs to another table: it makes other features than those of the run", path=path)
        return found

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Preprocessing:
        """Restore the output of `to_dict`; anything else is a `DataError`."""
        types: dict[str, Any] = {"str": str, "Kind": str, "int": int, "float": float}
        types |= {"tuple[str, ...]": lambda v: tuple(map(str, v)), "tuple[int, ...]": lambda v: tuple(map(int, v))}
        try:
            if content["version"] != VERSION:
                raise UserError(f"version {content['version']}, expected {VERSION}")
            read = [(field.name, types[str(field.type)]) for field in fields(Encoding)]
            columns = [Encoding(**{name: of(plain[name]) for name, of in read}) for plain in content["columns"]]
            for column in columns:
                if column.kind not in get_args(Kind):
                    raise UserError(f"column {column.name!r} of kind {column.kind!r}")
                if not np.isfinite([column.fill, column.shift, column.scale]).all() or column.scale <= 0:
                    raise UserError(f"column {column.name!r} is scaled by {column.scale}")
            return Preprocessing(tuple(columns), int(content["rows"]), tuple(map(str, content["notes"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"is not a description of a preprocessing ({type(error).__name__}: {error})") from error


def _texts(values: Values) -> list[str]:
    numeric = isinstance(values, np.ndarray)
    return [("" if np.isnan(v) else f"{v:.15g}") if numeric else str(v).strip() for v in values]


def _days(text: str, format: str) -> float | None:
    """Days since the beginning of the calendar, fractions for times of day; None where the text is no such date."""
    iso = format == _ISO
    if iso and (len(text) < 8 or not text[:4].isdigit()):
        return None
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z")) if iso else datetime.strptime(text, format)
    except ValueError:
        return None
    return moment.toordinal() + (moment.hour * 3600 + moment.minute * 60 + moment.second) / 86400


def _calendar(days: Floats) -> tuple[Any, Any]:
    """Month, 1 to 12, and weekday, 0 for Monday, of days since the beginning of the calendar."""
    whole = np.floor(days).astype(np.int64) - 1  # day 1 is a Monday
    months = (np.datetime64("0001-01-01") + whole.astype("m8[D]")).astype("M8[M]").astype(np.int64)
    return months % 12 + 1, whole % 7


def large_numbers(name: str) -> str:
    """A note on a column of numbers beyond `LARGE`."""
    remedy = f"if it is a code or an id, pass drop={name}, or categories={name} if it names a group"
    return f"column {name!r} holds numbers beyond {LARGE:.0e}: {remedy}"


def _recognise(name: str, values: Values, forced: Kind | None, notes: list[str]) -> Encoding:
    """The kind of a column, and its categories or months; guesses are added to `notes`."""
    numeric = isinstance(values, np.ndarray) and forced is None
    cells: Any = values if numeric else np.array(_texts(values), dtype=object)
    known = cells[~np.isnan(cells) if numeric else cells != ""]
    gaps = len(cells) - len(known)
    if not len(known):
        return Encoding(name, "left out", "empty", gaps)
    if not gaps and forced != "date" and bool((known == known[0]).all()):
        shown = f"{known[0]:.6g}" if numeric else repr(known[0])
        return Encoding(name, "left out", f"constant: {shown} in every row")
    if numeric:
        notes += [large_numbers(name)] if float(np.abs(known).max()) > LARGE else []
        return Encoding(name, "boolean" if bool(np.isin(known, (0, 1)).all()) else "number", gaps=gaps)
    counts = Counter(known)
    if forced is None and len(counts) <= 2 and all(value.lower() in _TRUTH for value in counts):
        return Encoding(name, "boolean", gaps=gaps)
    if forced != "category" and (date := _as_date(name, list(counts), gaps, notes)) is not None:
        return date
    if forced == "date":
        odd = next((cell for cell in counts if _days(cell, _ISO) is None), known[0])
        raise DataError(f"expected dates such as 2024-03-31, got {odd!r}", column=name)
    if forced is None and 2 * sum(bool(_AMOUNT.match(value)) for value in counts) > len(counts):
        signs = f"a currency, percent or thousands sign, for example {known[0]!r}, which are read as texts"
        remedy = "write them without signs, as in 1234.5, to have numbers"
        notes.append(f"column {name!r} looks like numbers with {signs}; {remedy}")
    if forced is None and len(counts) > max(MANY_TEXTS, len(known) / 2):
        reason = f"{len(counts):,} different texts in {len(known):,} rows: names or free text"
        return Encoding(name, "left out", reason, gaps)
    # One column per value; those below the share RARE, and the rarest beyond MOST_CATEGORIES, share one.
    counts = Counter(cell or GAP for cell in cells)
    ordered = sorted(counts)
    rare = {value for value in ordered if counts[value] < int(RARE * len(cells))}
    if len(ordered) - len(rare) + bool(rare) > MOST_CATEGORIES:
        rare.update(sorted(ordered, key=counts.__getitem__)[: 1 - MOST_CATEGORIES])
    if len(rare) == len(ordered):
        reason = f"{len(rare):,} different values, each in less than {RARE:.0%} of the rows: too rare to learn from"
        return Encoding(name, "left out", reason, gaps)
    kept, others = (tuple(value for value in ordered if (value in rare) == apart) for apart in (False, True))
    return Encoding(name, "category", gaps=gaps, categories=kept, rare=others)


def _as_date(name: str, values: Sequence[str], gaps: int, notes: list[str]) -> Encoding | None:
    """The column as dates, if one format reads all of its values."""
    formats = _DATE_FORMATS if any(map(str.isdigit, values[0])) else ()
    fitting = [format for format in formats if all(_days(value, format) is not None for value in values)]
    if not fitting:
        return None
    if {"%d/%m/%Y", "%m/%d/%Y"} <= {*fitting}:
        notes.append(f"dates of column {name!r} were read as day/month/year; write them as 2024-03-31 if that is wrong")
    days = [_days(value, fitting[0]) for value in values]
    if len(set(days)) == 1 and not gaps:
        return Encoding(name, "left out", f"constant: {values[0]!r} in every row")
    parts = [np.unique(part).tolist() for part in _calendar(np.array(days, dtype=np.float64))]
    months, weekdays = (tuple(part) if len(part) > 1 else () for part in parts)
    return Encoding(name, "date", gaps=gaps, format=fitting[0], months=months, weekdays=weekdays)
