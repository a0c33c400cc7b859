"""Tuning: defaults first, the best on validation, no test part, and a study that is continued where it ended."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_tasks import blocks

from difformer.data.registry import load
from difformer.errors import UserError
from difformer.files import only_one
from difformer.training.config import TrainConfig, make_config
from difformer.training.loop import Journal, train_one
from difformer.training.spaces import Space, default_space, load_spaces
from difformer.training.study import Question, continued, read_trials, tune
from difformer.zoo import MODELS, find, options_of
from difformer.zoo.model_registry import model_class

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


def test_the_sharp_form_competes_where_there_is_no_graph():
    without = default_space("nodes", observed=False, model="difformer", own=True, rows=500)
    assert without.axes["diffusivity"] == ("simple", "sharp")
    assert without.axes["tied_qk"] == (False, True)
    assert "diffusivity" in default_space("nodes", observed=False, model="difformer").axes
    for other in ({"observed": True}, {"model": "difformer-s"}, {"model": "mlp"}, {"rows": 10**6}):
        given = {"observed": False, "model": "difformer", "own": True, "rows": 500} | other
        assert "diffusivity" not in default_space("nodes", **given).axes


@pytest.mark.parametrize(
    ("kind", "observed", "model", "expected"),
    [
        ("nodes", True, "gcn", "gcn"),
        ("nodes", True, "difformer-s", "observed"),
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
    theirs = default_space("nodes", observed=False, model="grand").fixed
    assert ours == {"epochs": 1000, "num_heads": 1, "step_size": 0.5, "transform": False}
    assert theirs == {"epochs": 600}


def test_rivals_have_the_space_of_their_authors_on_observed_graphs():
    from difformer.zoo import find

    space = default_space("nodes", observed=True, model="gcn")
    assert dict(space.axes) == dict(find("gcn").space)
    assert space.fixed == {"epochs": 1000}


@pytest.mark.parametrize("observed", [False, True])
def test_the_space_for_own_data_lies_around_the_defaults(observed):
    space = default_space("nodes", observed=observed, model="difformer-s", own=True)
    assert space.fixed == {}
    assert (min(space.axes["learning_rate"]), max(space.axes["learning_rate"])) == (3e-4, 1e-2)
    assert (min(space.axes["weight_decay"]), max(space.axes["weight_decay"])) == (1e-5, 1e-2)
    assert ("graph_weight" in space.axes) == ("graph_norm" in space.axes) == observed
    assert "activation" in space.axes
    assert "transform" not in space.axes
    if observed:
        assert None in space.axes["graph_weight"]
    for number in range(0, space.size, 97):
        Question("difformer-s", space).config(space.point(number))


def test_points_are_different_and_a_longer_list_continues_a_shorter_one():
    space = load_spaces()["observed"]
    first, more = list(space.points(10, seed=3)), list(space.points(40, seed=3))
    assert more[:10] == first
    assert len({json.dumps(point) for point in more}) == 40
    assert len({json.dumps(point) for point in SPACE.points(100, seed=0)}) == SPACE.size == 4
    assert first != list(space.points(10, seed=4))


def test_fixed_settings_do_not_compete_and_competing_ones_are_not_fixed():
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


def points(question, count):
    return [json.dumps(point) for point in question.planned(count)]


def test_the_defaults_are_trial_one_then_the_given_settings_then_the_space():
    given = {"learning_rate": 0.7, "hidden_channels": 4, "epochs": 9, "colour": "red"}
    for sampler in ("random", "grid"):
        question = Question("mlp", SPACE, sampler=sampler, first=(given,))
        planned = question.planned(20)
        assert planned[0] == {
            "learning_rate": TrainConfig().learning_rate,
            "hidden_channels": options_of("mlp")["hidden_channels"],
        }
        assert planned[1] == {"learning_rate": 0.7, "hidden_channels": 4, "epochs": 9}
        assert len(planned) == 2 + SPACE.size
        assert question.planned(3) == planned[:3]
    assert question.planned(20)[2:] == [SPACE.point(number) for number in range(4)]


def test_the_best_is_the_best_on_validation(iris, tmp_path):
    question = Question("mlp", SPACE, runs=2, sampler="grid", prune=False)
    heard = []
    found = tune(iris, question, trials=5, out=tmp_path, on_trial=heard.append)["mlp"]
    scores = {}
    for point in question.planned(5):
        config = make_config("mlp", {**SPACE.fixed, **point})
        runs = [train_one(iris, split, config, split, "cpu").valid for split in range(2)]
        scores[json.dumps(point)] = sum(runs) / 2
    assert found.score == max(scores.values())
    assert scores[json.dumps(found.best.settings)] == found.score
    assert {json.dumps(trial.settings): trial.value for trial in found.trials} == scores
    assert found.settings == {**SPACE.fixed, **found.best.settings}
    assert [trial.number for trial in heard] == [0, 1, 2, 3, 4]


def shuffled(task):
    """The same task with other test labels."""
    parts = torch.cat([split.test for split in task.splits]).unique()
    held = ~torch.isin(parts, torch.cat([torch.cat([split.train, split.valid]) for split in task.splits]))
    parts = parts[held]
    assert parts.numel() > 10
    y = task.y.clone()
    y[parts] = y[parts.flip(0)]
    assert not torch.equal(y, task.y)
    return dataclasses.replace(task, y=y)


@pytest.mark.parametrize(("sampler", "stacked"), [("random", False), ("random", True), ("tpe", False)])
def test_a_study_does_not_depend_on_test_labels(tmp_path, sampler, stacked, monkeypatch):
    task = load("iris", num_splits=1)
    seen = []
    original = Journal.__init__

    def watched(self, trainer, metric):
        seen.append(trainer.split.test.numel())
        original(self, trainer, metric)

    monkeypatch.setattr(Journal, "__init__", watched)
    studies = []
    for number, one in enumerate((task, shuffled(task))):
        question = Question("mlp", SPACE, sampler=sampler)
        found = tune(one, question, trials=4, out=tmp_path / str(number), stacked=stacked)["mlp"]
        studies.append([dataclasses.replace(trial, seconds=0) for trial in found.trials])
    assert studies[0] == studies[1]
    assert not any(seen)
    assert bool(seen) != stacked


def test_no_test_metric_is_kept(iris, tmp_path):
    tune(iris, Question("mlp", SPACE), trials=2, out=tmp_path)
    kept = (tmp_path / "trials.jsonl").read_text()
    assert "value" in kept
    assert "test" not in kept.lower()


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_a_continued_study_equals_a_longer_one_and_repeats_nothing(iris, tmp_path, sampler):
    space = SPACE.with_axes({"weight_decay": [0.0, 0.01, 0.1]})
    question = Question("mlp", space, sampler=sampler, prune=False)
    tune(iris, question, trials=3, out=tmp_path / "parts")
    heard = []
    found = tune(iris, question, trials=8, out=tmp_path / "parts", on_trial=heard.append)["mlp"]
    assert [trial.number for trial in heard] == [3, 4, 5, 6, 7]
    assert len({json.dumps(trial.settings) for trial in found.trials}) == 8
    again = []
    assert tune(iris, question, trials=8, out=tmp_path / "parts", on_trial=again.append)["mlp"].best == found.best
    assert again == []
    whole = tune(iris, question, trials=8, out=tmp_path / "whole")["mlp"]
    assert [(t.settings, t.value) for t in whole.trials] == [(t.settings, t.value) for t in found.trials]


def test_tpe_repeats_a_point_only_when_all_were_tried(iris, tmp_path):
    found = tune(iris, Question("mlp", SPACE, sampler="tpe", prune=False), trials=5, out=tmp_path)["mlp"]
    assert len({json.dumps(trial.settings) for trial in found.trials}) == 1 + SPACE.size


def test_an_interrupted_trial_is_tried_again(iris, tmp_path):
    question = Question("mlp", SPACE)

    def stop(trial):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(iris, question, trials=4, out=tmp_path, on_trial=stop)
    assert len(read_trials(tmp_path)) == 1
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"number": 1, "settings": {"lear')  # a process that died while it wrote
    found = tune(iris, question, trials=4, out=tmp_path)["mlp"]
    assert [json.dumps(trial.settings) for trial in found.trials] == points(question, 4)


def test_another_question_in_the_same_folder_is_refused(iris, tmp_path):
    tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)
    with pytest.raises(ValueError, match=r"study of mlp with runs=1 \(now 2\)"):
        tune(iris, Question("mlp", SPACE, runs=2), trials=1, out=tmp_path)


def test_a_locked_folder_is_refused(iris, tmp_path):
    with only_one(tmp_path), pytest.raises(OSError, match="another process"):
        tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)
    assert len(tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)["mlp"].trials) == 1


def test_hopeless_and_diverging_trials_end_early(iris, tmp_path):
    space = Space("rates", {"learning_rate": (0.05, 0.04, 0.03, 0.02, 0.06, 1e-7, 1e38)}, {"epochs": 20})
    found = tune(iris, Question("mlp", space, sampler="grid"), trials=8, out=tmp_path)["mlp"]
    states = {trial.settings["learning_rate"]: trial for trial in found.trials}
    assert "not finite" in states[1e38].reason or "loss is" in states[1e38].reason
    assert states[1e38].state == "pruned"
    assert states[1e-7].number == 6  # the sixth of the grid after the defaults, when there is a median
    assert states[1e-7].state == "pruned"
    assert "below the median" in states[1e-7].reason


def test_stacks_find_what_single_runs_find(iris, tmp_path):
    space = SPACE.with_axes({"weight_decay": [0.0, 0.1]})
    question = Question("mlp", space, runs=2, sampler="grid", prune=False)
    alone = tune(iris, question, trials=9, out=tmp_path / "alone", stacked=False)["mlp"]
    heard = []
    together = tune(iris, question, trials=9, out=tmp_path / "stacked", stacked=True, on_trial=heard.append)["mlp"]
    values = [{json.dumps(trial.settings): trial.value for trial in found.trials} for found in (alone, together)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert together.settings == alone.settings
    assert len(heard) == 9
    assert tune(iris, question, trials=9, out=tmp_path / "stacked", stacked=True)["mlp"].best == together.best
    with pytest.raises(ValueError, match="stacked: the model is not one"):
        tune(iris, Question("label-spreading", SPACE.only(["epochs"])), trials=1, out=tmp_path / "no", stacked=True)


def test_several_models_get_one_budget_each(iris, tmp_path):
    questions = [Question("mlp", SPACE, prune=False), Question("difformer-s", SPACE, prune=False)]
    heard = []
    found = tune(iris, questions, trials=3, out=tmp_path, on_trial=heard.append)
    assert {name: len(tuned.trials) for name, tuned in found.items()} == {"mlp": 3, "difformer-s": 3}
    assert [(trial.model, trial.number) for trial in heard] == [
        (m, n) for m in ("mlp", "difformer-s") for n in range(3)
    ]
    alone = tune(iris, questions[1], trials=3, out=tmp_path / "alone")["difformer-s"]
    assert [t.value for t in alone.trials] == [t.value for t in found["difformer-s"].trials]
    more = tune(iris, [*questions, Question("gcn", SPACE)], trials=1, out=tmp_path)
    assert [len(tuned.trials) for tuned in more.values()] == [3, 3, 1]
    with pytest.raises(ValueError, match="models must be different"):
        tune(iris, [questions[0], questions[0]], trials=1, out=tmp_path / "twice")


def test_no_trial_starts_after_the_time_is_over(iris, tmp_path):
    with pytest.raises(ValueError, match="none of 0 trials of mlp succeeded"):
        tune(iris, Question("mlp", SPACE), trials=3, out=tmp_path, seconds=0)
    assert len(tune(iris, Question("mlp", SPACE), trials=3, out=tmp_path)["mlp"].trials) == 3


def test_two_processes_share_the_trials(iris, tmp_path):
    question = Question("mlp", SPACE, prune=False)
    found = tune(iris, question, trials=4, out=tmp_path, jobs=2)["mlp"]
    assert [json.dumps(trial.settings) for trial in found.trials] == points(question, 4)
    assert len(list(tmp_path.glob("trials-*.jsonl"))) == 2
    assert found.metric == "accuracy"


def test_without_validation_there_is_nothing_to_choose_by(iris, tmp_path):
    split = iris.splits[0]
    bare = iris.with_splits(type(split)("bare", split.train, split.valid[:0], split.test))
    with pytest.raises(ValueError, match="nothing to choose by"):
        tune(bare, Question("mlp", SPACE), trials=1, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_tuning_own_data_is_not_worse_than_the_defaults(tmp_path):
    """The search space of the paper contained settings far from sensible ones, and not the defaults."""
    task = blocks(n=120)
    space = default_space("nodes", observed=True, model="difformer-s", own=True).with_fixed({"epochs": 40})
    found = tune(task, Question("difformer-s", space), trials=4, out=tmp_path)["difformer-s"]
    plain = train_one(task, 0, TrainConfig(epochs=40), 0, "cpu").valid
    assert found.trials[0].value == plain
    assert found.score >= plain


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    """kill -9 of the parent ends its workers."""
    code = (
        "from difformer.data import load\n"
        "from difformer.training.spaces import Space\n"
        "from difformer.training.study import Question, tune\n"
        "if __name__ == '__main__':\n"
        "    space = Space('long', {'learning_rate': (0.001, 0.002, 0.003, 0.004)}, {'epochs': 100000})\n"
        "    tune(load('iris'), Question('mlp', space, prune=False), trials=4, out='study', jobs=2)\n"
    )
    (tmp_path / "search.py").write_text(code)
    parent = subprocess.Popen([sys.executable, "search.py"], cwd=tmp_path)
    until = time.monotonic() + 400
    while len(children := _children(parent.pid)) < 2 and time.monotonic() < until:
        assert parent.poll() is None
        time.sleep(0.2)
    time.sleep(5)  # they are loading torch, or training
    parent.kill()
    parent.wait()
    while any(_alive(child) for child in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(_alive(child) for child in children)


def _children(parent):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in listed]


def _alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("line", ['{"number": "x"}', "[]", "3", '{"number": 5, "model": 7}', "[" * 5000])
def test_damaged_lines_of_trials_are_skipped(iris, tmp_path, line):
    found = tune(iris, Question("mlp", SPACE), trials=2, out=tmp_path)["mlp"]
    kept = json.loads((tmp_path / "trials.jsonl").read_text().splitlines()[0])
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write(f"{line}\n{json.dumps({**kept, 'number': 'x'})}\n{json.dumps({**kept, 'number': 9, 'value': []})}\n")
    assert tune(iris, Question("mlp", SPACE), trials=2, out=tmp_path)["mlp"].trials == found.trials


def test_a_damaged_study_file_is_refused(iris, tmp_path):
    tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)
    (tmp_path / "study.json").write_text('{"mlp": "x"}')
    with pytest.raises(UserError, match=r"study\.json is damaged"):
        tune(iris, Question("mlp", SPACE), trials=1, out=tmp_path)


def test_a_trial_says_how_long_it_took(iris, tmp_path):
    started = time.perf_counter()
    found = tune(iris, Question("mlp", SPACE), trials=2, out=tmp_path)["mlp"]
    took = time.perf_counter() - started
    assert all(trial.seconds > 0 for trial in found.trials)
    assert sum(trial.seconds for trial in found.trials) <= took


def test_the_first_trial_has_the_defaults_also_of_what_the_space_fixes():
    space = default_space("nodes", observed=True, model="difformer-s")
    assert space.fixed["transform"] is False
    question = Question("difformer-s", space)
    assert question.config(question.defaults()).options["transform"] is True
    assert question.config(question.planned(2)[1]).options["transform"] is False
    held = Question("difformer-s", space.with_fixed({"transform": False}))
    assert held.config(held.defaults()).options["transform"] is False


@pytest.mark.parametrize("model", [one for one in MODELS if find(one).trained])
@pytest.mark.parametrize("observed", [True, False])
def test_every_model_takes_every_value_of_the_space_of_own_data(model, observed):
    axes = default_space("nodes", observed=observed, model=model, own=True, rows=100).axes
    declared = getattr(model_class(find(model)), "_options", {})
    for name, values in axes.items():
        for value in values:
            make_config(model, {name: value})
            if name in declared:
                declared[name].check(name, value)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_setting_that_fails_does_not_end_the_study(iris, tmp_path, stacked):
    space = Space("two", {"activation": (None, "relu")}, {"epochs": 3, "hidden_channels": 4})
    question = Question("gcn", space, sampler="grid", prune=False)
    found = tune(iris, question, trials=3, out=tmp_path, device="cpu", stacked=stacked)["gcn"]
    failed = [trial for trial in found.trials if trial.reason]
    assert [trial.settings["activation"] for trial in failed] == [None]
    assert "activation must be one of" in failed[0].reason
    assert found.settings["activation"] == "relu"


def test_a_model_without_a_successful_trial_leaves_the_others(iris, tmp_path):
    wrong = Question("gcn", Space("one", {}, {"epochs": 3, "activation": None}), prune=False)
    right = Question("mlp", SPACE, prune=False)
    with pytest.warns(UserWarning, match=r"none of \d trials of gcn succeeded: activation must be"):
        found = tune(iris, [wrong, right], trials=1, out=tmp_path, device="cpu")
    assert list(found) == ["mlp"]


def test_a_study_continues_with_the_settings_it_began_with(iris, tmp_path):
    """Settings to begin with may come from presets, which another version of the package has changed."""
    first = Question("mlp", SPACE, prune=False)
    before = tune(iris, first, trials=2, out=tmp_path, device="cpu")["mlp"].trials
    later = dataclasses.replace(first, first=({"learning_rate": 0.7},))
    with pytest.raises(UserError, match=r"holds a study of mlp with first="):
        tune(iris, later, trials=3, out=tmp_path, device="cpu")
    after = tune(iris, continued([later], tmp_path), trials=3, out=tmp_path, device="cpu")["mlp"].trials
    assert after[:2] == before
    assert after[2].settings == first.planned(3)[2]
