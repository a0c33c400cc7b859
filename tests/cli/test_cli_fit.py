"""``difformer fit``: what a person sees, what is on disk, and what happens when something is wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from difformer.cli.command import read_seeds
from difformer.errors import UserError
from difformer.report import layers

QUICK = ("--set", "epochs=3", "--set", "hidden_channels=8")


def test_fit_prints_protocol_and_results_and_writes_the_run_folder(installed, tmp_path):
    answer = installed("fit", "karate", "--seeds", "2", *QUICK, "--out", "out/run", cwd=tmp_path)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "karate: 34 nodes, 190 edges, 34 features, 2 classes"
    assert "protocol: one-a-side" in lines[1]
    assert "model: difformer (epochs=3, hidden_channels=8)" in answer.out
    summary = json.loads((tmp_path / "out/run/summary.json").read_text())
    mean, std = summary["test"]["mean"], summary["test"]["std"]
    assert f"test accuracy: {mean:.4f} ± {std:.4f} (mean ± standard deviation over 2 seeds, each on" in answer.out
    assert lines[-1] == "run folder: out/run"
    assert "seed 1 epoch 3/3 loss" in answer.err
    assert "epochs/s" in answer.err
    names = {path.name for path in (tmp_path / "out/run").iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "summary.json", "seed-0", "seed-1"}
    rows = [json.loads(line) for line in (tmp_path / "out/run/metrics.jsonl").read_text().splitlines()]
    assert [(row["seed"], row["epoch"]) for row in rows] == [(s, e) for s in (0, 1) for e in (1, 2, 3)]


def test_one_seed_has_no_deviation(call):
    fitted = call("fit", "karate", "--seeds", "1", *QUICK, "--out", "run")
    assert fitted.code == 0, fitted.err
    said = [fitted.out, call("evaluate", "run").out, call("compare", "run", "run").out]
    assert "(one seed)" in said[0]
    assert all("accuracy" in one and "±" not in one for one in said), said


def lend(monkeypatch, *presets):
    """Real presets belong to data that are not here: these take their place."""
    import difformer.experiments.presets as module

    monkeypatch.setattr(module, "load_presets", lambda: presets)


@pytest.mark.parametrize(
    ("protocols", "words", "said"),
    [
        ((), (), "untuned: defaults of gcn, no preset for karate"),
        ((None,), (), "untuned: defaults of gcn; presets for karate: paper (add --preset paper)"),
        (
            ("random", "one-a-side"),
            (),
            "untuned: defaults of gcn; presets for karate: best (of protocol random), paper "
            "(add --preset best --protocol random)",
        ),
        (("random",), ("--protocol", "random"), "untuned: defaults of gcn; presets for karate: paper (add --pre"),
    ],
)
def test_defaults_are_called_untuned_and_presets_named(call, monkeypatch, protocols, words, said):
    from difformer.experiments.presets import Preset

    names = ("best", "paper")[-len(protocols) :]
    of_others = Preset("paper", "gat", "karate"), Preset("best", "gcn", "karate", variant="per_class=9")
    lend(
        monkeypatch,
        *of_others,
        *(Preset(n, "gcn", "karate", protocol=p) for n, p in zip(names, protocols, strict=False)),
    )
    monkeypatch.setattr("difformer.training.run.fit", lambda *_, **__: (_ for _ in ()).throw(UserError("begun")))
    answer = call("fit", "karate", "--model", "gcn", "--seeds", "1", *words)
    assert next(line for line in answer.out.splitlines() if line.startswith("untuned")).startswith(said)
    assert said in call("fit", "karate", "--model", "gcn", *words, "--set", "epochs=3").out  # chooses no model
    assert "untuned" not in call("fit", "karate", "--model", "gcn", *words, *QUICK).out
    assert "untuned" not in call("fit", "karate", "--model", "gcn", *words, "--batch-size", "8").out
    assert call("fit", "karate", "--model", "gcn", "--json", *words).out == ""


def test_without_model_and_preset_the_best_preset_of_the_data_set_is_taken(call, monkeypatch):
    from difformer.experiments.presets import Preset
    from difformer.training import RunFolder

    def tuned(model, validation, runs=10, name="common", **given):
        settings = {"hidden_channels": 8, "num_layers": 1}
        return Preset(name, model, "karate", settings, validation=validation, metric="accuracy", runs=runs, **given)

    lend(
        monkeypatch,
        tuned("difformer-s", 0.8),
        tuned("difformer-off", 0.9),
        tuned("difformer", 0.95, runs=2),  # two runs are noisy
        tuned("difformer-a", 0.99, name="best"),  # another budget
        tuned("difformer-a", 0.99, variant="authors"),  # other splits
        tuned("gcn", 0.99),  # a rival
    )
    words = ("fit", "karate", "--seeds", "1", "--set", "epochs=2", "--out")
    answer = call(*words, "run")
    assert "model: difformer-off (hidden_channels=8, num_layers=1, epochs=2)" in answer.out
    assert (
        "the best validation score of the tuned DIFFormer models for karate, and attention off; --model difformer"
        in answer.out
    )
    assert (RunFolder.open("run").config.model, RunFolder.open("run").preset) == ("difformer-off", "common")
    compared = call(*words, "both", "--with", "attention-off")
    assert "model: difformer-s (" in compared.out
    assert "difference that attention makes" in compared.out
    refused = call("fit", "karate", "--model", "difformer-off", "--with", "attention-off")
    assert "attention is off already" in refused.err
    fixed = call(*words, "other", "--set", "diffusivity=sigmoid")  # only one of them can take it
    assert "model: difformer (hidden_channels=8, num_layers=1, epochs=2, diffusivity=sigmoid)" in fixed.out
    plain = call(*words, "plain", "--model", "difformer").out
    assert "model: difformer (epochs=2)" in plain
    assert "best validation score" not in plain


def test_near_uniform_attention_is_noted(call, monkeypatch):
    words = ("fit", "karate", "--seeds", "1", "--set", "epochs=3", "--device", "cpu")
    note = "attention is close to uniform at every layer"
    devices, load = [], layers.load_run
    monkeypatch.setattr(layers, "load_run", lambda *a, **more: devices.append(more["device"]) or load(*a, **more))
    assert note in call(*words).out
    assert devices == ["cpu"]
    assert any(note in one for one in json.loads(call(*words, "--json").out)["notes"])
    assert note not in call(*words, "--set", "diffusivity=sharp:80").out  # selects
    assert note not in call(*words, "--model", "difformer-off").out  # has none


def test_attention_that_cannot_be_measured_leaves_the_result(call, monkeypatch):
    def fail(*given):
        raise torch.OutOfMemoryError("out of memory on a device")

    monkeypatch.setattr(layers, "attention_of", fail)
    answer = call("fit", "karate", "--seeds", "1", "--set", "epochs=3")
    assert answer.code == 0
    assert "test accuracy: " in answer.out
    assert "note: attention was not measured: out of memory on a device" in answer.out


def test_data_options_of_a_preset_are_used_and_overridden_by_the_command_line(call, monkeypatch):
    from difformer.experiments.presets import Preset

    lend(monkeypatch, Preset("best", "mlp", "iris", {"epochs": 1}, data={"per_class": 3}))
    words = ("fit", "iris", "--model", "mlp", "--preset", "best", "--seeds", "1", "--out")
    taken = call(*words, "one").out
    assert "data: per_class=3, from the preset" in taken
    assert "train/valid/test: 9, " in taken
    own = call(*words, "two", "--data", "per_class=4").out
    assert "from the preset" not in own
    assert "train/valid/test: 12, " in own
    assert "were found with per_class=3" in own


def test_fit_prints_the_preset_and_records_it(call, monkeypatch, tmp_path):
    from difformer.experiments.presets import Preset, write_preset
    from difformer.training import RunFolder

    tuned = {"metric": "accuracy", "validation": 0.9, "trials": 16, "command": "difformer tune iris --model mlp"}
    settings = {"epochs": 2, "hidden_channels": 4}
    found = Preset("paper", "mlp", "iris", settings, source="a grid", seeds=1, **tuned)
    lend(monkeypatch, found)
    answer = call("fit", "iris", "--model", "mlp", "--preset", "paper", "--out", "run")
    assert answer.code == 0, answer.err
    assert "preset: paper (mlp on iris): a grid (validation accuracy 0.9, 16 trials)\n" in answer.out
    assert "found by" not in answer.out  # `difformer models mlp --json` has it
    assert answer.out.endswith("settings: preset paper\nrun folder: run\n")
    assert "untuned" not in answer.out
    assert RunFolder.open("run").preset == "paper"
    write_preset(found, "own.toml")
    document = json.loads(call("fit", "iris", "--preset", "own.toml", "--out", "own", "--json").out)
    assert document["preset"] == RunFolder.open("own").preset == "own.toml"
    assert json.loads(call("fit", "iris", "--model", "mlp", *QUICK, "--seeds", "1", "--json").out)["preset"] is None
    assert call("fit", "--resume", "own").out.endswith("settings: preset own.toml\nrun folder: own\n")


def test_stdout_is_a_single_json_document_with_json(call, tmp_path):
    answer = call("fit", "karate", "--seeds", "1,4", *QUICK, "--model", "gcn", "--json", "--out", "run")
    document = json.loads(answer.out)
    assert answer.code == 0
    assert document["run"] == "run"
    assert document["config"]["model"] == "gcn"
    assert [result["seed"] for result in document["results"]] == [1, 4]
    written = json.loads((tmp_path / "run/summary.json").read_text())
    assert document["test"] == written["test"]


def test_the_default_folder_is_new_each_time(call, tmp_path):
    for _ in range(2):
        assert call("fit", "iris", "--seeds", "1", "--model", "mlp", *QUICK).code == 0
    assert len(list((tmp_path / "runs").glob("iris-mlp-*"))) == 2


def test_data_options_and_protocol_reach_the_data(call):
    answer = call("fit", "karate", "--protocol", "random", "--data", "num_splits=2", "--seeds", "1", *QUICK)
    assert "protocol: random: 20/20/60, stratified, 2 splits" in answer.out
    both = call("fit", "karate", "--protocol", "random", "--data", "protocol=one-a-side")
    assert both.code == 2
    assert "--protocol says 'random'" in both.err


def test_none_is_text_or_null_depending_on_the_setting(call):
    words = ["graph=none", "qk_norm=none", "graph_weight=none", "patience=none"]
    answer = call("fit", "karate", "--seeds", "1", *QUICK, *(w for word in words for w in ("--set", word)), "--json")
    assert answer.code == 0, answer.err
    config = json.loads(answer.out)["config"]
    assert (config["graph"], config["patience"]) == ("none", None)
    assert (config["options"]["qk_norm"], config["options"]["graph_weight"]) == ("none", None)
    assert call("fit", "karate", "--set", "graph=none", "--set", "graph=knn:3").code == 2


def test_fit_uses_a_preset_of_the_package(call, monkeypatch):
    """Real presets belong to data that are not here, so one is lent to iris."""
    import difformer.experiments
    from difformer.experiments import find_preset as real

    lent = real("public-code", model="difformer-a", dataset="chameleon")
    asked = {}

    def find(name, *, model, dataset):
        asked.update(name=name, model=model, dataset=dataset)
        return lent

    monkeypatch.setattr(difformer.experiments, "find_preset", find)
    answer = call("fit", "Iris", "--model", "difformer-a", "--preset", "public-code", "--seeds", "1", *QUICK, "--json")
    config = json.loads(answer.out)["config"]
    assert asked == {"name": "public-code", "model": "difformer-a", "dataset": "iris"}
    assert config["learning_rate"] == 0.01
    assert config["epochs"] == 3  # --set goes before the preset
    assert config["options"]["qk_norm"] == "none"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fit"], r"a table \(FILE --label COLUMN\)"),
        (["fit", "irsi"], "did you mean iris"),
        (["fit", "iris", "--model", "difformer"[:-1]], "did you mean 'difformer'"),
        (["fit", "iris", "--set", "hiden_channels=4"], "did you mean hidden_channels"),
        (["fit", "iris", "--set", "learning_rate=-1"], "learning_rate must be a number above 0"),
        (["fit", "iris", "--set", "epochs"], "NAME=VALUE"),
        (["fit", "iris", "--data", "per_clas=4"], "has no option 'per_clas'"),
        (["fit", "iris", "--set", "edge_dim=4"], "unknown setting 'edge_dim'"),
        (["fit", "iris", "--data", "edge-attr=x"], "no option 'edge_attr'"),
        (["fit", "iris", "--protocol", "linear"], "'linear'"),
        (["fit", "iris", "--data", "per_class"], "expected KEY=VALUE"),
        (["fit", "iris", "--preset", "best"], "there is no preset 'best' for difformer-s on iris"),
        (["fit", "iris", "--preset", "absent.toml"], "there is no file absent.toml"),
        (["fit", "iris", "--seeds", "many"], "expected a number of seeds such as 5"),
        (["fit", "iris", "--seeds", "0"], "expected at least 1"),
        (["fit", "iris", "--seeds", "2,1,1"], "--seeds: '2,1,1' names seed 1 more than once"),
        (["fit", "iris", "--seeds", "0,-1"], "expected seeds of at least 0, got -1 in '0,-1'"),
        (["fit", "iris", "--device", "cuda:99"], "device 'cuda:99' is not available"),
        (["fit", "iris", "--features", "x.csv"], "not both"),
        (["fit", "--features", "x.csv", "--labels", "y.csv"], "--features: there is no file x.csv"),
        (["fit", "--labels", "y.csv"], "--features is missing"),
        (["fit", "--resume", "nowhere"], "nowhere does not exist"),
        (["fit", "iris", "--resume", "run"], "omit the data set"),
        (["fit", "synmol", "--model", "label-spreading"], "not on disk|could not be downloaded|serves nodes"),
        (["fit", "iris", "--set", "learning_rate=1e38", "--set", "epochs=20"], "not finite at epoch 1"),
    ],
)
def test_an_invalid_request_gives_one_message_and_exit_code_2(call, tmp_path, words, complaint):
    answer = call(*words)
    assert answer.code == 2
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    import re

    assert re.search(complaint, errors[0]), errors[0]
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("lds", "use another model at this size, or fewer inner_steps"),
        ("gat", "train with batch_size=…, or fewer heads"),
    ],
)
def test_out_of_memory_model_is_refused_with_advice(call, monkeypatch, tmp_path, model, advice):
    from difformer.zoo import encoder

    monkeypatch.setattr(encoder, "WORTH_A_LOOK", 0)
    monkeypatch.setattr(encoder, "free_bytes", lambda device: 1000)
    answer = call("fit", "karate", "--model", model, "--device", "cpu", "--out", "run")
    assert answer.code == 2
    said = answer.err.splitlines()[-1]
    assert said.startswith("error: not enough memory: ")
    assert said.endswith(f"GiB are free on cpu; {advice}")
    assert "out of memory" not in answer.err
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_is_not_overwritten(call, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("years")
    answer = call("fit", "iris", *QUICK, "--out", "taken")
    assert answer.code == 2
    assert "taken already exists and is not empty; nothing was changed" in answer.err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["thesis.txt"]


def test_stacked_and_single_training_agree(call):
    words = ["fit", "iris", "--model", "mlp", "--seeds", "3", *QUICK, "--json"]
    found = [json.loads(call(*words, how, "--out", how[2:]).out) for how in ("--stacked", "--no-stacked")]
    assert found[0]["test"]["mean"] == pytest.approx(found[1]["test"]["mean"], abs=0.02)
    answer = call("fit", "iris", "--model", "label-spreading", "--stacked")
    assert answer.code == 2
    assert "stacked: these runs cannot be trained as one" in answer.err


def test_resume_after_ctrl_c_gives_the_uninterrupted_result(installed, environment, tmp_path):
    command = Path(sys.executable).with_name("difformer")
    words = ["fit", "iris", "--model", "mlp", "--seeds", "2", "--set", "epochs=300", "--set", "hidden_channels=8"]
    words += ["--no-stacked"]
    with subprocess.Popen(
        [command, *words, "--out", "stopped"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        metrics = tmp_path / "stopped/metrics.jsonl"
        until = time.monotonic() + 60
        while not (metrics.is_file() and metrics.stat().st_size > 2000):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.index("stopping after this epoch") < said.index("Resume with: difformer fit --resume stopped")
    asked = installed("evaluate", "stopped", cwd=tmp_path)
    assert asked.code == 0
    assert "is not finished" in asked.err
    assert "difformer fit --resume stopped" in asked.err
    resumed = installed("fit", "--resume", "stopped", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert "run folder: stopped" in resumed.out
    whole = installed(*words, "--out", "whole", cwd=tmp_path)
    assert whole.code == 0
    found = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("stopped", "whole")]
    assert found[0]["complete"]
    assert found[0]["test"] == found[1]["test"]
    assert found[0]["valid"] == found[1]["valid"]


@pytest.mark.parametrize("stage", ["twice, within a run", "before there is a run"])
def test_second_ctrl_c_says_how_to_resume_from_the_last_checkpoint(call, tmp_path, monkeypatch, stage):
    import difformer.training.run as run

    def stop(task, config, *, out, **_):
        if "within" in stage:
            Path(out).mkdir()
            (Path(out) / "config.toml").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", stop)
    answer = call("fit", "iris", *QUICK, "--out", "run")
    assert answer.code == 130
    said = " at once. Resume from the last checkpoint with: difformer fit --resume run" if "within" in stage else ""
    assert answer.err == f"interrupted{said}\n"


def test_a_trailing_comma_selects_a_single_seed(call):
    document = json.loads(call("fit", "karate", "--seeds", "3,", *QUICK, "--json").out)
    assert [result["seed"] for result in document["results"]] == [3]
    assert "expected a number of seeds" in call("fit", "karate", "--seeds", "3,,").err


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("0-1", [0, 1]), ("4-4", [4]), ("1,5-7", [1, 5, 6, 7]), ("1,", [1])]
)
def test_seeds_are_a_number_a_list_or_a_range(text, seeds):
    assert read_seeds(text, 5) == seeds


@pytest.mark.parametrize(("text", "said"), [("5-2", "a smaller to a larger"), ("-3", "at least 1"), ("1-b", "0-4")])
def test_invalid_seeds_are_explained(text, said):
    with pytest.raises(UserError, match=said):
        read_seeds(text, 5)


@pytest.mark.parametrize("name", ["rocauc", "roc_auc", "AUC"])
def test_metric_option_accepts_aliases(call, name):
    document = json.loads(call("fit", "karate", "--seeds", "1", *QUICK, "--metric", name, "--json").out)
    assert document["metric"] == document["config"]["metric"] == "rocauc"


@pytest.mark.parametrize("verb", ["fit", "tune"])
def test_an_unknown_metric_is_refused_before_any_data_are_read(call, verb):
    answer = call(verb, "karate", "--metric", "acuracy")
    assert answer.code == 2
    assert "'acuracy'; did you mean accuracy?" in answer.err
    assert answer.out == ""


def test_the_protocol_line_names_the_chosen_metric(call):
    words = ("fit", "karate", "--seeds", "1", *QUICK)
    assert re.search("^protocol: .*; accuracy$", call(*words).out, re.M)
    assert re.search("^protocol: .*; rocauc$", call(*words, "--metric", "auc", "--out", "run").out, re.M)
    assert re.search("^protocol: .*; rocauc$", call("evaluate", "run").out, re.M)


@pytest.fixture
def customers(tmp_path):
    rows = "".join(f"{20 + i},{i % 2},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "customers.csv").write_text("age,shop,segment\n" + rows)
    return tmp_path


def test_fit_accepts_a_table_in_place_of_a_data_set(call, customers):
    answer = call(
        "fit", "customers.csv", "--label", "segment", "--model", "mlp", "--seeds", "1", *QUICK, "--out", "run"
    )
    assert answer.code == 0, answer.err
    assert answer.out.startswith("customers: 40 rows, 2 features, 2 classes\n")
    again = call("fit", "--features", "customers.csv", "--label", "segment", "--model", "mlp", "--seeds", "1", *QUICK)
    assert again.out.splitlines()[:3] == answer.out.splitlines()[:3]


def test_a_missing_table_is_named_in_the_error(call, customers):
    answer = call("fit", "clients.csv", "--label", "segment")
    assert answer.code == 2
    assert "there is no file clients.csv" in answer.err
    (customers / "run").mkdir()
    (customers / "run" / "config.toml").touch()
    assert "to resume it: difformer fit --resume run" in call("fit", "run").err
    assert "give either a data set ('iris') or your own files (--label)" in call("fit", "iris", "--label", "x").err
    assert "--label says segment, but --data says label_columns=age" in (
        call("fit", "customers.csv", "--label", "segment", "--data", "label_columns=age").err
    )


def test_attention_off_is_trained_with_the_same_settings_and_compared(call, tmp_path):
    from difformer.training import RunFolder

    words = ("fit", "karate", "--seeds", "2", *QUICK, "--with", "attention-off", "--out", "run")
    answer = call(*words)
    assert answer.code == 0, answer.err
    assert "with attention off: test accuracy: " in answer.out
    assert re.search(r"difference that attention makes: \S+ over 2 pairs of runs; .* attention off \(p = ", answer.out)
    assert "the first run" not in answer.out
    on, off = RunFolder.open("run").config, RunFolder.open("run-attention-off").config
    assert off.options["diffusivity"] is None
    paper = call(*words[:-1], "paper", "--model", "difformer-s")
    assert paper.code == 0, paper.err
    exact = RunFolder.open("paper-attention-off").config.options  # the form of difformer-s, not that of the defaults
    assert (exact["graph_weight"], exact["source_weight"]) == (None, 0.0)
    assert (off.epochs, off.options["hidden_channels"]) == (on.epochs, on.options["hidden_channels"]) == (3, 8)
    document = json.loads(call(*words[:-1], "other", "--json").out)["attention_off"]
    assert document["run"] == "other-attention-off"
    assert document["comparison"]["pairs"] == 2


def test_attention_off_is_refused_for_a_model_without_attention(call, tmp_path):
    answer = call("fit", "karate", "--model", "gcn", "--with", "attention-off")
    assert answer.code == 2
    assert "gcn has no attention to switch off" in answer.err
    assert (
        "--with: expected attention-off, the only run that can be added; got 'luck'"
        in call("fit", "karate", "--with", "luck").err
    )
    assert not list(tmp_path.iterdir())


def test_settings_of_training_change_nothing_for_a_model_that_is_not_trained(call):
    answer = call("fit", "karate", "--model", "lp", "--seeds", "1", "--set", "epochs=5", "--set", "learning_rate=0.1")
    assert "note: lp trains nothing, so epochs=5, learning_rate=0.1 changes nothing" in answer.out
