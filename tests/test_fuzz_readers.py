"""Every reader of files is given damaged ones: a result or an error of ours comes out, and nothing else.

`DIFFORMER_FUZZ=N` sets the number of cases per reader, `DIFFORMER_FUZZ_SEED` the seed.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz import Reader, attack, damage
from scipy import sparse

from difformer.data import Split, Task, from_files, load, load_splits, read_features, save_splits
from difformer.data.datasets.pickles import read_pickle
from difformer.data.split import random_split
from difformer.distributed.partition_folder import Partition, write_partition
from difformer.errors import UserError
from difformer.experiments.ledger import Ledger
from difformer.experiments.presets import Preset, read_preset, write_preset
from difformer.files import RunFolderError
from difformer.kernels.cpu import build
from difformer.nn import DIFFormer
from difformer.training import RunFolder, TrainConfig, TrainingInterrupted, evaluate, fit, load_run, predict, resume
from difformer.training.spaces import Space
from difformer.training.study import Question, tune

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SEED = int(os.environ.get("DIFFORMER_FUZZ_SEED", "0"))
CONFIG = TrainConfig(options={"hidden_channels": 4}, epochs=2)
N = 24


def task(named: bool = False) -> Task:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 3
    order = torch.randperm(N, generator=g)
    return Task(
        "small", "nodes", "multiclass", "accuracy", "made", torch.randn(N, 3, generator=g) + y[:, None], y,
        (Split("a", order[:10], order[10:16], order[16:]),), 3,
        edge_index=torch.randint(0, N, (2, 60), generator=g), edge_weight=torch.rand(60, generator=g),
        instance_names=tuple(f"node {i}" for i in range(N)) if named else (),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- tables, arrays


def tables(folder: Path, packed: bool = False, delimiter: str = ",") -> None:
    parts = {
        "f": "id,age,town,since,a\n"
        + "".join(f"n{i},{i},{'abc'[i % 3]},2020-01-{i + 1:02},{-i}.5\n" for i in range(N)),
        "l": "id,label\n" + "".join(f"n{i},{('u', 'v', '')[i % 3]}\n" for i in range(N)),
        "e": "source,target,weight\n" + "".join(f"n{i},n{i + 1},{i + 1}\n" for i in range(N - 1)),
    }
    end = {",": "csv", "\t": "tsv"}[delimiter]
    for name, text in parts.items():
        content = text.replace(",", delimiter).encode()
        place = folder / (f"{name}.{end}.gz" if packed else f"{name}.{end}")
        place.write_bytes(gzip.compress(content) if packed else content)


def read_tables(folder: Path) -> None:
    f, l, e = (next(folder.glob(f"{name}.*")) for name in "fle")  # noqa: E741
    found = from_files(f, l, e)
    assert found.num_nodes == len(found.y)
    read_features(f, preprocessing=found.preprocessing)


def arrays(folder: Path) -> None:
    x, y = np.arange(2.0 * N).reshape(N, 2), np.arange(N) % 3
    mask = np.arange(N) < N // 3
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    np.savez(folder / "a.npz", x=x, y=y, edge_index=edges, train_mask=mask, val_mask=mask[::-1], test_mask=mask[::-1])
    sparse.save_npz(folder / "s.npz", sparse.csr_matrix(np.eye(N)))
    np.save(folder / "y.npy", y)


def read_arrays(folder: Path) -> None:
    for read in (lambda: from_files(folder / "a.npz"), lambda: from_files(folder / "s.npz", folder / "y.npy")):
        try:
            read()
        except (UserError, OSError):
            continue


def graphs(folder: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    one = data.Data(x=torch.arange(2.0 * N).view(N, 2), edge_index=edges, y=torch.arange(N) % 3)
    several = [data.Data(x=torch.ones(n + 4, 2), edge_index=edges, y=torch.tensor([n % 2])) for n in range(12)]
    torch.save(one, folder / "one.pt")
    torch.save(several, folder / "several.pt")


def read_graphs(folder: Path) -> None:
    for file in sorted(folder.glob("*.pt")):
        try:
            from_files(file)
        except (UserError, OSError):
            continue


def parquet(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {"id": [f"n{i}" for i in range(N)], "a": range(N), "b": [True, None] * (N // 2), "label": ["u", "v"] * 12}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), folder / "f.parquet")


def splits(folder: Path) -> None:
    for suffix in ("json", "npz"):
        save_splits([random_split(20, seed=s) for s in range(2)], folder / f"s.{suffix}")


def read_splits(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        try:
            load_splits(file)
        except (UserError, OSError):
            continue


def pickles(folder: Path) -> None:
    matrix = sparse.csr_matrix(np.eye(4))
    content = {"a": [np.arange(6.0)], "m": matrix, "t": (b"b", "t", None, {1, 2}), "d": {1: [2, 3]}}
    for protocol in (0, 2, 4):
        (folder / f"p{protocol}.pkl").write_bytes(pickle.dumps(content, protocol=protocol))


def read_pickles(folder: Path) -> None:
    kinds = (
        dict,
        list,
        tuple,
        set,
        frozenset,
        str,
        bytes,
        int,
        float,
        type(None),
        np.ndarray,
        np.generic,
        sparse.csr_matrix,
    )

    def plain(value: object) -> None:
        assert isinstance(value, kinds), type(value)
        if isinstance(value, np.ndarray):
            assert value.dtype.kind in "biufO"
            assert value.dtype.kind != "O" or all(type(one) is str for one in value.reshape(-1))
        for one in (
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        ):
            plain(one)

    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            try:
                plain(read_pickle(stream.read()))
            except (UserError, OSError):
                continue


def published(folder: Path) -> None:
    matrix, place = sparse.csr_matrix(np.eye(8)), folder / "gnn_benchmark"
    place.mkdir()
    parts = {f"{name}_{key}": getattr(matrix, key) for name in ("attr", "adj") for key in ("data", "indices", "indptr")}
    shapes = {f"{name}_shape": np.array([8, 8]) for name in ("attr", "adj")}
    np.savez(place / "amazon_electronics_photo.npz", labels=np.arange(8) % 2, **parts, **shapes)


def read_published(folder: Path) -> None:
    os.environ["DIFFORMER_CACHE"] = str(folder / "cache")
    load("amazon-photo", folder, protocol="60/20/20")


# ------------------------------------------------------------------------------------------------------- run folders


def run(folder: Path) -> None:
    fit(task(), CONFIG, seeds=2, out=folder / "run", device="cpu", stacked=False)


def read_run(folder: Path) -> None:
    opened = RunFolder.open(folder / "run")
    opened.rows()
    opened.summary().to_dict()
    evaluate(opened, task=task(), device="cpu")
    predict(opened, task=task(), device="cpu")
    load_run(opened, seed=1, task=task(), device="cpu")


def own_run(folder: Path) -> None:
    """A run that knows its own data, so that the command line needs nothing else."""
    tables(folder)
    words = (
        "fit --features f.csv --labels l.csv --edges e.csv --set epochs=2 --set hidden_channels=4 --out run --seeds 1"
    )
    assert _command(folder, *words.split(), "--device", "cpu") == 0


def _command(folder: Path, *words: str) -> int:
    """The command line in this process; what is not a message of ours is raised."""
    from difformer.cli import main

    before = os.getcwd()
    os.chdir(folder)
    try:
        main(list(words))
    except SystemExit as end:
        if end.code not in (None, 0, 1, 2):
            raise
        return int(end.code or 0)
    finally:
        os.chdir(before)
    return 0


def interrupted(folder: Path) -> None:
    class Stop:
        def on_epoch(self, event: object) -> None:
            if event.epoch == 2:  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGINT)

    for stacked, name in ((False, "alone"), (True, "stack")):
        config = CONFIG.replace(epochs=4, checkpoint_every=1)
        with contextlib.suppress(KeyboardInterrupt, TrainingInterrupted):
            fit(task(), config, seeds=2, out=folder / name, device="cpu", stacked=stacked, callbacks=[Stop()])


def read_interrupted(folder: Path) -> None:
    for name in ("alone", "stack"):
        try:
            resume(folder / name, task=task(), device="cpu")
        except (UserError, OSError):
            continue


def model(folder: Path) -> None:
    torch.manual_seed(0)
    DIFFormer(3, 4, 2, num_layers=2).save_pretrained(folder)


def estimator(folder: Path) -> None:
    from difformer.estimators import DIFFormerClassifier

    x = task().x.numpy()
    DIFFormerClassifier(steps=4, hidden_channels=4, random_state=0).fit(x, np.arange(N) % 3).save_pretrained(folder)


def read_estimator(folder: Path) -> None:
    from difformer.estimators import DIFFormerClassifier

    DIFFormerClassifier.from_pretrained(folder).predict(task().x.numpy())


# -------------------------------------------------------------------------------------- partitions, studies, results


def partition(folder: Path) -> None:
    write_partition(task(named=True), folder / "parts", 3)


def read_partition(folder: Path) -> None:
    found = Partition.open(folder / "parts")
    for number in range(len(found.sizes)):
        part = found.read(number)
        assert part.y.shape[0] == found.sizes[number]
        assert len(part.names) in (0, found.sizes[number])
    _ = found.quality.describe()


QUESTION = Question("mlp", Space("small", {"learning_rate": (0.01, 0.02)}, {"epochs": 1, "hidden_channels": 4}), runs=1)


def study(folder: Path) -> None:
    pytest.importorskip("optuna")
    tune(task(), QUESTION, trials=2, out=folder / "study", device="cpu")


def read_study(folder: Path) -> None:
    tune(task(), QUESTION, trials=2, out=folder / "study", device="cpu")


def ledger(folder: Path) -> None:
    lines = sorted((Path(__file__).parents[1] / "results").glob("*/runs.jsonl"))
    assert lines
    text = lines[0].read_text(encoding="utf-8").splitlines()[:4]
    (folder / "runs.jsonl").write_text("\n".join(text) + "\n", encoding="utf-8")


def read_ledger(folder: Path) -> None:
    from difformer.experiments.analysis import read_summary
    from difformer.experiments.spec import find

    lines = sorted((Path(__file__).parents[1] / "results").glob("*/runs.jsonl"))
    Ledger(folder).read()
    read_summary(find(lines[0].parent.name), folder)


def preset(folder: Path) -> None:
    settings = {"learning_rate": 0.01, "hidden_channels": 8, "epochs": 3}
    found = Preset("own", "mlp", "cora", settings, "tuned", "random", 5, "accuracy", 0.8, 64, 2, "difformer tune cora")
    write_preset(found, folder / "p.toml")


def read_presets(folder: Path) -> None:
    found = read_preset(folder / "p.toml")
    found.describe()
    found.to_dict()
    TrainConfig(model="mlp").replace(**{k: v for k, v in found.settings.items() if hasattr(TrainConfig, k)})


def library(folder: Path) -> None:
    os.environ["DIFFORMER_CACHE"] = str(folder)
    found = build.find.__wrapped__()
    if found.library is None:
        pytest.skip(found.story)


def read_library(folder: Path) -> None:
    os.environ["DIFFORMER_CACHE"] = str(folder)
    file = next((folder / "native").glob("*.so"))
    sound = folder.parent / "sound" / "native" / file.name
    compile_again = build._compile
    build._compile = lambda compiler, flags, path: shutil.copy2(sound, path)
    try:
        assert build.find.__wrapped__().library is not None
    finally:
        build._compile = compile_again


READERS = [
    Reader("text tables", tables, ("*.csv",), read_tables),
    Reader("tab-separated tables", lambda f: tables(f, delimiter="\t"), ("*.tsv",), read_tables),
    Reader("packed tables", lambda f: tables(f, packed=True), ("*.gz",), read_tables),
    Reader("NPZ and NPY", arrays, ("*.np?",), read_arrays),
    Reader("PyG files", graphs, ("*.pt",), read_graphs),
    Reader("Parquet", parquet, ("*.parquet",), lambda f: from_files(f / "f.parquet")),
    Reader("splits", splits, ("s.*",), read_splits),
    Reader("pickles", pickles, ("*.pkl",), read_pickles),
    Reader("published archives", published, ("*/*.npz",), read_published),
    Reader("run folders", run, ("run/*.*", "run/seed-*/*"), read_run),
    Reader("evaluate", own_run, ("run/*.*", "run/seed-0/*"), lambda f: _command(f, "evaluate", "run")),
    Reader("report", own_run, ("run/*.*", "run/seed-0/*"), lambda f: _command(f, "report", "run")),
    Reader(
        "predict",
        own_run,
        ("run/*.*", "run/seed-0/*"),
        lambda f: _command(f, "predict", "run", "--features", "f.csv", "--out", "o.csv"),
    ),
    Reader("checkpoints", interrupted, ("*/*.safetensors", "*/*/checkpoint.safetensors"), read_interrupted),
    Reader("saved models", model, ("*",), lambda f: DIFFormer.from_pretrained(f)(torch.ones(2, 3))),
    Reader("saved estimators", estimator, ("*",), read_estimator),
    Reader("partitions", partition, ("parts/*",), read_partition),
    Reader("studies", study, ("study/*.json*",), read_study),
    Reader("ledgers", ledger, ("*.jsonl",), read_ledger),
    Reader("presets", preset, ("*.toml",), read_presets),
    Reader("kernel library", library, ("native/*.so",), read_library),
]
SLOW = {"report": 4, "evaluate": 10, "predict": 10, "checkpoints": 8, "studies": 10, "run folders": 15, "ledgers": 10}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_give_a_result_or_an_error_of_ours(reader, tmp_path):
    cases = int(os.environ.get("DIFFORMER_FUZZ", SLOW.get(reader.name, 20)))
    assert not attack(reader, tmp_path / "case", range(cases), SEED)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_damaged_files_give_a_result_or_an_error_of_ours(reader, tmp_path):
    cases = 40 if reader.name == "report" else 200
    assert not attack(reader, tmp_path / "case", range(10_000, 10_000 + cases), SEED)


def test_the_judge_notices_a_crash_a_hang_and_a_foreign_error(tmp_path):
    """Three readers that misbehave, to see that a finding would be found."""
    import ctypes

    def write(folder: Path) -> None:
        (folder / "a.txt").write_text("1,2\n")

    def unless_sound(act):
        return lambda folder: act() if folder.name != "sound" else None

    def crash():
        ctypes.string_at(0)

    def fail():
        raise TypeError("a bug")

    def take_memory():
        return bytearray(8 << 30)

    for act, said in ((crash, "the process ended"), (fail, "TypeError: a bug"), (take_memory, "MemoryError")):
        found = attack(Reader("bad", write, ("a.txt",), unless_sound(act)), tmp_path / said[:9], range(2), 0)
        assert len(found) == 2
        assert said in found[0]

    def refuse():
        raise RunFolderError("damaged")

    assert not attack(Reader("good", write, ("a.txt",), unless_sound(refuse)), tmp_path / "good", range(2), 0)


def test_damage_changes_files_and_repeats_itself():
    import random

    content = b'{"a": [1, 2, {"b": "text"}]}'
    first = [damage(content, "a.json", random.Random(i)) for i in range(50)]
    assert first == [damage(content, "a.json", random.Random(i)) for i in range(50)]
    assert sum(one != content for one in first) > 45
