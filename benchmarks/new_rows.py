"""A million new rows in the context of a hundred thousand fitted ones, and the memory of fitting those.

    python -m benchmarks.new_rows                        # both; each part in a process of its own
    python -m benchmarks.new_rows --part predict --rows 1000000

Fitted are 100,000 × 100 dense rows without a graph; states of 64, two layers for the predictions, and one model as well
as the three of the default. Training is cut short after a few steps: neither the time of a prediction nor the memory of
a fit depends on how well the weights are chosen, and memory is at its peak from the first backward pass on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from difformer.estimators import DIFFormerClassifier

FITTED, FEATURES, HIDDEN = 100_000, 100, 64
SECONDS, BYTES = 30.0, 2e9  # to be stayed under
FITS = {"simple": {"num_layers": 4, "n_models": 3}, "sigmoid": {"num_layers": 2, "n_models": 1}}


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian features, and four classes that a linear map of three of them decides."""
    rng = np.random.RandomState(0)
    x = rng.randn(rows, FEATURES)
    return x, (x[:, :3] @ rng.randn(3, 4)).argmax(1)


def peak() -> float:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fit(diffusivity: str) -> dict[str, float]:
    """Peak of the whole process, imports and table included, at the end of a fit."""
    x, y = table(FITTED)
    started = time.perf_counter()
    options = FITS[diffusivity]
    partly = np.where(np.arange(FITTED) % 2 == 0, y, -1)
    DIFFormerClassifier(diffusivity=diffusivity, graph=None, steps=4, random_state=0, **options).fit(x, partly)
    return {"seconds": time.perf_counter() - started, "bytes": peak()}


def predict(rows: int, models: int) -> dict[str, float]:
    """Seconds for new rows, after a fit of few steps."""
    x, y = table(FITTED)
    options = {"hidden_channels": HIDDEN, "num_layers": 2, "n_models": models, "graph": None, "steps": 2}
    model = DIFFormerClassifier(random_state=0, **options).fit(x, np.where(np.arange(FITTED) % 2 == 0, y, -1))
    new = np.random.RandomState(1).randn(rows, FEATURES)
    started = time.perf_counter()
    model.predict(new)
    return {"seconds": time.perf_counter() - started, "bytes": peak()}


def elsewhere(*arguments: str) -> dict[str, float]:
    """What a part says that runs in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.new_rows", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def verdict(value: float, limit: float) -> str:
    return "reached" if value < limit else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("predict", "fit"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--diffusivity", choices=FITS, default="simple")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.part == "predict":
        print(json.dumps(predict(given.rows, given.models)))
    elif given.part == "fit":
        print(json.dumps(fit(given.diffusivity)))
    else:
        common = ("--threads", str(given.threads))
        print(f"{FITTED:,} × {FEATURES} rows fitted without a graph, {given.threads} threads")
        for models in (1, 3):
            found = elsewhere("--part", "predict", "--rows", str(given.rows), "--models", str(models), *common)
            print(
                f"{given.rows:,} new rows, states of {HIDDEN}, 2 layers, {models} model(s): {found['seconds']:.1f} s "
                f"(wanted < {SECONDS:.0f} s: {verdict(found['seconds'], SECONDS)})"
            )
        for diffusivity, options in FITS.items():
            found = elsewhere("--part", "fit", "--diffusivity", diffusivity, *common)
            print(
                f"fit with {diffusivity}, {options['num_layers']} layers, {options['n_models']} model(s): peak "
                f"{found['bytes'] / 1e9:.2f} GB (wanted < {BYTES / 1e9:.0f} GB: {verdict(found['bytes'], BYTES)})"
            )


if __name__ == "__main__":
    main()
