"""Tuning: the grids are the paper's, the best is the best on validation, and a study goes on where it ended."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from difformer.data.registry import load
from difformer.files import only_one
from difformer.training.loop import train_one
from difformer.training.spaces import Space, default_space, load_spaces
from difformer.training.tuning import Question, make_config, tune

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def iris():
    return load("iris", num_splits=2)


SPACE = Space("small", {"learning_rate": (0.001, 0.05), "hidden_channels": (4, 16)}, {"epochs": 6, "num_layers": 2})


def test_the_grids_of_the_paper():
    spaces = load_spaces()
    assert spaces["observed"].axes["learning_rate"] == (0.0001, 0.001, 0.01, 0.1)
    assert spaces["observed"].size == 4 * 6 * 3 * 3 * 4
    assert spaces["series"].size == 3 * 2 * 3
    assert spaces["unobserved"].size == 5 * 4 * 3 * 6 * 7
    assert [spaces[name].fixed["epochs"] for name in ("observed", "series", "unobserved")] == [1000, 200, 600]


@pytest.mark.parametrize(
    ("kind", "observed", "model", "expected"),
    [
        ("nodes", True, "gcn", "observed"),
        ("nodes", False, "mlp", "unobserved"),
        ("graphs", True, "difformer-s", "unobserved"),
        ("series", True, "difformer-a", "series"),
        ("nodes", False, "label-spreading", "label-spreading"),
    ],
)
def test_each_kind_of_task_has_its_grid(kind, observed, model, expected):
    assert default_space(kind, observed=observed, model=model).name == expected


def test_the_papers_heads_and_step_size_are_for_its_own_encoders():
    ours = default_space("nodes", observed=True, model="difformer-s").fixed
    theirs = default_space("nodes", observed=True, model="grand").fixed
    assert ours == {"epochs": 1000, "num_heads": 1, "step_size": 0.5, "transform": False}
    assert theirs == {"epochs": 1000}


def test_points_are_different_and_a_longer_list_continues_a_shorter_one():
    space = load_spaces()["observed"]
    first, more = list(space.points(10, seed=3)), list(space.points(40, seed=3))
    assert more[:10] == first
    assert len({json.dumps(point) for point in more}) == 40
    assert len({json.dumps(point) for point in SPACE.points(100, seed=0)}) == SPACE.size == 4
    assert first != list(space.points(10, seed=4))


def test_what_is_held_no_longer_competes_and_the_other_way_round():
    held = SPACE.with_fixed({"hidden_channels": 8})
    assert set(held.axes) == {"learning_rate"}
    assert held.fixed["hidden_channels"] == 8
    freed = held.with_axes({"hidden_channels": [1, 2], "dropout": [0.0]})
    assert freed.axes["hidden_channels"] == (1, 2)
    assert "hidden_channels" not in freed.fixed
    with pytest.raises(ValueError, match="dropout names a value twice"):
        SPACE.with_axes({"dropout": [0.0, 0.0]})


def test_settings_become_a_configuration():
    config = make_config("mlp", {"learning_rate": 0.1, "num_layers": 3, "graph": "none"})
    assert (config.learning_rate, config.graph, config.options) == (0.1, "none", {"num_layers": 3})
    with pytest.raises(ValueError, match="step_size"):
        make_config("mlp", {"step_size": 0.5})


def test_the_best_is_the_best_on_validation(iris, tmp_path):
    question = Question("mlp", SPACE, runs=2, sampler="grid", prune=False)
    heard = []
    found = tune(iris, question, trials=4, out=tmp_path, on_trial=heard.append)
    scores = {}
    for point in SPACE.points(4, 0):
        config = make_config("mlp", {**SPACE.fixed, **point})
        runs = [train_one(iris, split, config, split, "cpu").valid for split in range(2)]
        scores[json.dumps(point)] = sum(runs) / 2
    assert found.score == max(scores.values())
    assert scores[json.dumps(found.best.settings)] == found.score
    assert {json.dumps(trial.settings): trial.value for trial in found.trials} == scores
    assert found.settings == {**SPACE.fixed, **found.best.settings}
    assert [trial.number for trial in heard] == [0, 1, 2, 3]


def test_no_test_metric_is_kept(iris, tmp_path):
    tune(iris, Question("mlp", SPACE), trials=2, out=tmp_path)
    with sqlite3.connect(tmp_path / "study.db") as database:
        kept = "\n".join(database.iterdump())
    assert "trial_values" in kept
    assert "test" not in kept.lower()


def test_a_study_goes_on_and_does_not_repeat_itself(iris, tmp_path):
    question = Question("mlp", SPACE)
    tune(iris, question, trials=2, out=tmp_path)
    heard = []
    found = tune(iris, question, trials=4, out=tmp_path, on_trial=heard.append)
    assert [trial.number for trial in heard] == [2, 3]
    assert len({json.dumps(trial.settings) for trial in found.trials}) == 4
    again = []
    assert tune(iris, question, trials=4, out=tmp_path, on_trial=again.append).best == found.best
    assert again == []


def test_an_interrupted_trial_is_tried_again(iris, tmp_path):
    question = Question("mlp", SPACE)

    def stop(trial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(iris, question, trials=4, out=tmp_path, on_trial=stop)
    import optuna

    study = optuna.load_study(storage=f"sqlite:///{tmp_path / 'study.db'}", study_name="difformer")
    study.ask()  # takes the next point and dies with it
    found = tune(iris, question, trials=4, out=tmp_path)
    assert len(found.trials) == 4
    assert len({json.dumps(trial.settings) for trial in found.trials}) == 4


def test_another_question_in_the_same_folder_is_refused(iris, tmp_path):
    tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)
    with pytest.raises(ValueError, match="differs in runs"):
        tune(iris, Question("mlp", SPACE, runs=2), trials=1, out=tmp_path)


def test_a_folder_at_work_is_refused(iris, tmp_path):
    with only_one(tmp_path), pytest.raises(OSError, match="another process"):
        tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)
    assert len(tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path).trials) == 1


def test_hopeless_and_diverging_trials_end_early(iris, tmp_path):
    space = Space("rates", {"learning_rate": (0.05, 0.04, 0.03, 0.02, 0.06, 1e-7, 1e38)}, {"epochs": 20})
    found = tune(iris, Question("mlp", space, sampler="grid"), trials=7, out=tmp_path)
    states = {trial.settings["learning_rate"]: trial for trial in found.trials}
    assert "loss is" in states[1e38].reason
    assert states[1e38].state == "pruned"
    assert states[1e-7].number == 5  # the sixth of the grid, when there is a median to stay below
    assert states[1e-7].state == "pruned"
    assert "below the median" in states[1e-7].reason


def test_stacks_find_what_single_runs_find(iris, tmp_path):
    space = SPACE.with_axes({"weight_decay": [0.0, 0.1]})
    question = Question("mlp", space, runs=2, sampler="grid", prune=False)
    alone = tune(iris, question, trials=8, out=tmp_path / "alone", stacked=False)
    heard = []
    together = tune(iris, question, trials=8, out=tmp_path / "stacked", stacked=True, on_trial=heard.append)
    values = [{json.dumps(trial.settings): trial.value for trial in found.trials} for found in (alone, together)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert together.settings == alone.settings
    assert len(heard) == 8
    assert tune(iris, question, trials=8, out=tmp_path / "stacked", stacked=True).best == together.best
    with pytest.raises(ValueError, match="stacked: the model is not one"):
        tune(iris, Question("label-spreading", SPACE.only(["epochs"])), trials=1, out=tmp_path / "no", stacked=True)


def test_tpe_and_two_processes(iris, tmp_path):
    found = tune(iris, Question("mlp", SPACE, sampler="tpe"), trials=4, out=tmp_path, jobs=2)
    assert len(found.trials) == 4
    assert found.metric == "accuracy"


def test_without_validation_there_is_nothing_to_choose_by(iris, tmp_path):
    split = iris.splits[0]
    bare = iris.with_splits(type(split)("bare", split.train, split.valid[:0], split.test))
    with pytest.raises(ValueError, match="nothing to choose by"):
        tune(bare, Question("mlp", SPACE), trials=1, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    """kill -9 of the parent: the database stops growing, and the study can be taken up."""
    code = (
        "from difformer.data import load\n"
        "from difformer.training.spaces import Space\n"
        "from difformer.training.tuning import Question, tune\n"
        "if __name__ == '__main__':\n"
        "    space = Space('long', {'learning_rate': (0.001, 0.002, 0.003, 0.004)}, {'epochs': 100000})\n"
        "    tune(load('iris'), Question('mlp', space, prune=False), trials=4, out='study', jobs=2)\n"
    )
    (tmp_path / "search.py").write_text(code)
    parent = subprocess.Popen([sys.executable, "search.py"], cwd=tmp_path)
    until = time.monotonic() + 400
    while not (workers := _running(tmp_path)) and time.monotonic() < until:
        assert parent.poll() is None
        time.sleep(0.2)
    assert workers == 2, workers
    children = _children(parent.pid)
    parent.kill()
    parent.wait()
    while any(_alive(child) for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(_alive(child) for child in children)


def _running(folder):
    """Trials at work, once there are two."""
    try:
        with sqlite3.connect(f"file:{folder / 'study/study.db'}?mode=ro", uri=True) as database:
            (count,) = database.execute("select count(*) from trials where state = 'RUNNING'").fetchone()
    except sqlite3.OperationalError:
        return 0
    return count if count == 2 else 0


def _children(parent):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in listed]


def _alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
