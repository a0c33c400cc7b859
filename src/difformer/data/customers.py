"""An example of a linked table: customers, who referred whom, and who left a year later.

The three files look like the exports of a shop: categories, dates, gaps, yes and no. Each customer i has a hidden
propensity to leave, p_i. A referred customer resembles the one who referred them, p_i = ρ p_j + √(1 - ρ²) ε_i, so the
referrals carry information that the columns have only in part. The guide to linked tables uses this example.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from difformer.files import csv_text, write_whole

CUSTOMERS, KNOWN = 1000, 100
RESEMBLANCE = 0.9  # ρ
FIRST_DAY = date(2021, 1, 1)
HEADER = ("id", "plan", "city", "joined", "monthly_spend", "support_calls", "late_payments", "newsletter", "segment")
CITIES = ("Bergen", "Gdansk", "Ghent", "Graz", "Porto", "Turku")


def write_customers(folder: str | Path = ".", *, seed: int = 0) -> tuple[Path, Path, Path]:
    """Writes ``customers.csv``, ``referrals.csv`` and ``outcomes.csv``; equal seeds give equal files.

    ``customers.csv`` has one row for each of 1,000 customers; ``segment`` is ``stays`` or ``leaves`` for 100 of them
    and empty for all others. ``referrals.csv`` has the columns ``from`` and ``to``. ``outcomes.csv`` holds the segment
    of every customer, to check predictions against.

    Args:
        folder: Where to write; created if it does not exist.
        seed: Seed of all random choices.

    Returns:
        The paths of the three files.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     customers, referrals, outcomes = write_customers(folder)
        ...     print(customers.read_text().splitlines()[0])
        id,plan,city,joined,monthly_spend,support_calls,late_payments,newsletter,segment
    """
    draw = np.random.default_rng(seed)
    ids = [f"c{number:05d}" for number in range(CUSTOMERS)]
    propensity = draw.normal(size=CUSTOMERS)
    referrals = []
    for customer in range(CUSTOMERS // 10, CUSTOMERS):  # the first tenth came without a referral
        by = int(draw.integers(customer))
        referrals.append((ids[by], ids[customer]))
        propensity[customer] = RESEMBLANCE * propensity[by] + (1 - RESEMBLANCE**2) ** 0.5 * propensity[customer]
    segment = np.where(propensity + 0.3 * draw.normal(size=CUSTOMERS) > 0, "leaves", "stays")

    calls = draw.poisson(np.exp(0.3 + 0.35 * propensity))
    late = draw.poisson(np.exp(-0.8 + 0.5 * propensity))
    spend = np.exp(3.2 - 0.25 * propensity + 0.5 * draw.normal(size=CUSTOMERS)).round(2)
    gap = draw.random(CUSTOMERS) < 0.08
    plan = np.array(["basic", "plus", "pro"])[np.digitize(0.5 * propensity + draw.normal(size=CUSTOMERS), (0, 1.2))]
    joined = [FIRST_DAY + timedelta(days=int(days)) for days in np.sort(draw.integers(0, 1200, CUSTOMERS))]
    city, reads = draw.choice(CITIES, CUSTOMERS), draw.random(CUSTOMERS) < 0.4 - 0.1 * np.tanh(propensity)
    known = set(draw.permutation(CUSTOMERS)[:KNOWN].tolist())

    kept = [segment[i] if i in known else "" for i in range(CUSTOMERS)]
    spent, letter = ["" if g else s for g, s in zip(gap, spend, strict=True)], np.where(reads, "yes", "no")
    folder = Path(folder)
    tables = {
        "customers.csv": [HEADER, *zip(ids, plan, city, joined, spent, calls, late, letter, kept, strict=True)],
        "referrals.csv": [("from", "to"), *referrals],
        "outcomes.csv": [("id", "segment"), *zip(ids, segment, strict=True)],
    }
    for name, rows in tables.items():
        write_whole(folder / name, csv_text(rows).encode())
    return folder / "customers.csv", folder / "referrals.csv", folder / "outcomes.csv"
