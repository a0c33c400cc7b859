"""Learning curves of every seed, thinned where a run has more epochs than a screen has columns."""

from __future__ import annotations

from typing import Any

from difformer.training.run_folder import RunFolder

POINTS = 300  # of a seed
PARTS = ("train", "valid", "test")


def learning_curves(folder: RunFolder) -> dict[str, Any]:
    """Loss and metric of every seed by epoch, and the epoch that was kept."""
    best = {result["seed"]: result["best_epoch"] for result in folder.results()}
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for row in folder.metrics.read():
        by_seed.setdefault(int(row["seed"]), []).append(row)
    thinned, seeds = False, []
    for seed, rows in sorted(by_seed.items()):
        rows.sort(key=lambda row: int(row["epoch"]))
        evaluated = [row for row in rows if row.get("valid") is not None or row.get("train") is not None]
        kept, losses = _thin(evaluated, best.get(seed)), _thin(rows, best.get(seed))
        thinned |= len(kept) < len(evaluated) or len(losses) < len(rows)
        seeds.append(
            {
                "seed": seed,
                "best": best.get(seed),
                "loss": {"epoch": [row["epoch"] for row in losses], "value": [_short(row["loss"]) for row in losses]},
                "epoch": [row["epoch"] for row in kept],
                **{part: [_short(row.get(part)) for row in kept] for part in PARTS},
            }
        )
    about = folder.about["data"]
    metric = about["metric"] if folder.config.metric == "auto" else folder.config.metric
    return {"metric": metric, "seeds": seeds, "thinned": thinned}


def _thin(rows: list[dict[str, Any]], best: int | None) -> list[dict[str, Any]]:
    """Every n-th row, the last one and the kept one."""
    step = -(-len(rows) // POINTS)
    return [
        row
        for place, row in enumerate(rows)
        if place % max(step, 1) == 0 or place == len(rows) - 1 or row["epoch"] == best
    ]


def _short(value: Any) -> float | None:
    return None if value is None else float(f"{value:.5g}")
