"""An example of a linked table: customers, who referred whom, and who left a year later.

The three files look like the exports of a shop: categories, dates, gaps, yes and no. Each customer i has a hidden
propensity to leave, p_i. A referred customer resembles the one who referred them, p_i = ρ p_j + √(1 - ρ²) ε_i, so the
referrals carry information that the columns have only in part. The guide to linked tables uses this example.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from difformer.errors import UserError
from difformer.files import csv_text, write_whole

RESEMBLANCE = 0.9  # ρ
FIRST_DAY = date(2021, 1, 1)
HEADER = ("id", "plan", "city", "joined", "monthly_spend", "support_calls", "late_payments", "newsletter", "segment")
CITIES = ("Bergen", "Gdansk", "Ghent", "Graz", "Porto", "Turku")


def write_customers(
    folder: str | Path = ".", *, num_customers: int = 1000, num_known: int = 100, seed: int = 0
) -> tuple[Path, Path, Path]:
    """Writes ``customers.csv``, ``referrals.csv`` and ``outcomes.csv``; equal options give equal files.

    ``customers.csv`` has one row per customer; ``segment`` is ``stays`` or ``leaves`` for `num_known` random customers
    and empty for all others. ``referrals.csv`` has the columns ``from`` and ``to``. ``outcomes.csv`` holds the segment
    of every customer, to check predictions against.

    Args:
        folder: Where to write; created if it does not exist.
        num_customers: Rows of the table, at least 20.
        num_known: Customers whose segment is known.
        seed: Seed of all random choices.

    Returns:
        The paths of the three files.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     customers, referrals, outcomes = write_customers(folder, num_customers=50, num_known=10)
        ...     print(customers.read_text().splitlines()[0])
        id,plan,city,joined,monthly_spend,support_calls,late_payments,newsletter,segment
    """
    if num_customers < 20 or not 0 <= num_known <= num_customers:
        raise UserError(
            f"write_customers: expected num_customers ≥ 20 and 0 ≤ num_known ≤ num_customers, "
            f"got num_customers={num_customers} and num_known={num_known}"
        )
    draw = np.random.default_rng(seed)
    ids = [f"c{number:05d}" for number in range(num_customers)]
    propensity = draw.normal(size=num_customers)
    referrals = []
    for customer in range(num_customers // 10, num_customers):  # the first tenth came without a referral
        by = int(draw.integers(customer))
        referrals.append((ids[by], ids[customer]))
        propensity[customer] = RESEMBLANCE * propensity[by] + (1 - RESEMBLANCE**2) ** 0.5 * propensity[customer]
    segment = np.where(propensity + 0.3 * draw.normal(size=num_customers) > 0, "leaves", "stays")

    calls = draw.poisson(np.exp(0.3 + 0.35 * propensity))
    late = draw.poisson(np.exp(-0.8 + 0.5 * propensity))
    spend = np.exp(3.2 - 0.25 * propensity + 0.5 * draw.normal(size=num_customers)).round(2)
    gap = draw.random(num_customers) < 0.08
    plan = np.array(["basic", "plus", "pro"])[np.digitize(0.5 * propensity + draw.normal(size=num_customers), (0, 1.2))]
    joined = [FIRST_DAY + timedelta(days=int(days)) for days in np.sort(draw.integers(0, 1200, num_customers))]
    city, reads = draw.choice(CITIES, num_customers), draw.random(num_customers) < 0.4 - 0.1 * np.tanh(propensity)
    known = set(draw.permutation(num_customers)[:num_known].tolist())

    kept = [segment[i] if i in known else "" for i in range(num_customers)]
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
