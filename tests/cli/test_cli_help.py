"""The first thing anybody sees: help, at once, and lists of what there is."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = (
    "fit", "predict", "evaluate", "embed", "tune", "report", "explain", "compare", "energy", "demo", "datasets",
    "models", "certify", "reproduce", "partition",
)  # fmt: skip


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_comes_within_0_4_seconds_and_without_torch(installed, environment, tmp_path):
    taken = []
    for _ in range(3):
        before = cpu_seconds()
        answer = installed("--help", cwd=tmp_path)
        taken.append(cpu_seconds() - before)
    assert answer.code == 0
    for verb in VERBS:
        assert f" {verb} " in answer.out
    assert min(taken) < 0.4  # of processor time: other work on the machine does not count
    seen = subprocess.run(
        [sys.executable, "-c", "import sys, difformer.cli.app; print(sorted(m for m in sys.modules if m in "
         "('torch', 'numpy', 'sklearn', 'optuna', 'torch_geometric')))"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert seen.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help_and_a_json_option(call, verb):
    answer = call(verb, "--help")
    assert answer.code == 0
    assert f"Usage: difformer {verb}" in answer.out
    assert "--json" in answer.out


def test_fit_help_says_what_is_not_supported(call):
    said = " ".join(call("fit", "--help").out.split())
    assert "Link prediction and edge features are not supported yet" in said


def test_usage_of_compare_and_own_models_in_fit(call):
    assert "difformer compare [OPTIONS] RUN..." in call("compare", "--help").out
    assert "package.module:Class" in call("fit", "--help").out


def test_difformer_without_a_command_shows_three_commands(call):
    answer = call()
    assert answer.code == 0
    assert [line.split()[1] for line in answer.out.splitlines() if line.startswith("  difformer ")] == [
        "demo", "fit", "report",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("fitt",), "fit"),
        (("datsets",), "datasets"),
        (("fit", "cora", "--sedes", "3"), "--seeds"),
        (("fit", "--modle", "gcn"), "--model"),
        (("fit", "cora", "--epochs", "3"), "--set epochs=…"),
        (("fit", "cora", "--hidden-channels", "3"), "--set hidden_channels=…"),
        (("tune", "cora", "--lr", "3"), "--set learning_rate=…"),
        (("fit", "x.csv", "--delimiter", ";"), "--data delimiter=…"),
    ],
)  # fmt: skip
def test_a_typo_in_a_command_or_option_suggests_the_right_one(call, words, suggestion):
    wrong = call(*words)
    assert wrong.code == 2
    assert wrong.out == ""
    assert re.search(rf"([Dd]id you mean|Possible options:).*{suggestion}", wrong.err)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("predict", "run"), "Missing option '--out'.* New file .*Example: difformer predict .*--out predictions.csv"),
        (("explain", "run"), "Missing option '--node'.* Name or number .*Example: difformer explain"),
        (("report",), "Missing argument 'RUN'.*Example: difformer report"),
    ],
)
def test_a_missing_argument_is_explained_with_an_example(call, words, hint):
    answer = call(*words)
    assert answer.code == 2
    assert re.search(hint, " ".join(answer.err.split()))


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_values_in_plain_words(call, verb):
    assert not re.search(r"<(str|int|float|path|list)|\{[a-z]+\}|Print it", call(verb, "--help").out)
    assert "Print it" not in call("--help").out


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_an_example(call, verb):
    assert f"Example: difformer {verb}" in " ".join(call(verb, "--help").out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [("difformer fi", ["fit"]), ("difformer fit cor", ["cora"]), ("difformer fit --model gc", ["gcn"])],
)
def test_the_shell_completes_commands_data_sets_and_models(environment, tmp_path, words, expected):
    asked = {**environment, "_DIFFORMER_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    said = subprocess.run(
        [sys.executable, "-c", "from difformer.cli import main; main()"],
        cwd=tmp_path, env=asked, capture_output=True, text=True,
    )  # fmt: skip
    found = said.stdout.split()
    assert found[:1] == expected, said
    assert all(name.startswith(words.split()[-1]) for name in found)


@pytest.mark.parametrize("typed", ["cors", "coar", "Cora1"])
def test_a_misspelled_data_set_is_suggested(call, typed):
    assert "did you mean cora?" in call("fit", typed).err


@pytest.mark.parametrize("name", ["customers", "foo", "sales", "segments"])
def test_an_unrelated_name_gets_no_suggestion(call, name):
    answer = call("fit", name)
    assert answer.code == 2
    assert "did you mean" not in answer.err


def test_help_has_no_colours_without_a_terminal(call):
    for words in ((), ("--help",), ("fit", "--help"), ("datasets",), ("models", "gcn")):
        assert "\x1b" not in call(*words).out


def test_help_of_graph_weight_says_that_none_adds_and_a_number_mixes(call):
    meaning = json.loads(call("models", "difformer-s", "--json").out)["meanings"]["options"]["graph_weight"]
    assert "total mass" in meaning


def test_python_dash_m_prints_the_version(tmp_path):
    said = subprocess.run(
        [sys.executable, "-m", "difformer", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    import difformer

    assert said.stdout == f"difformer {difformer.__version__}\n"


@pytest.mark.parametrize(("verb", "words"), [("datasets", ("cora", "1,797")), ("models", ("mlp", "Start here"))])
def test_listing_datasets_and_models_does_not_import_torch(environment, tmp_path, verb, words):
    code = (
        "import sys; from difformer.cli import main\n"
        f"try: main(['{verb}'])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert said.strip().endswith("False")
    assert all(word in said for word in words)


@pytest.mark.parametrize("width", [80, 100, 120, 160, 220])
def test_model_list_fits_any_terminal_width(width):
    from io import StringIO

    from rich.cells import cell_len
    from rich.console import Console

    from difformer.cli.models import listing
    from difformer.zoo.model_catalogue import MODELS

    console = Console(width=width, file=StringIO())
    console.print(listing(MODELS.values()))
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    names = [line.split()[0] for line in lines if line.split() and line[1] != " "]
    assert [name for name in names if name in MODELS] == list(MODELS)  # no name is broken
    shown = " ".join(" ".join(lines).split())
    assert all(info.summary and f"{info.name} {info.summary}" in shown for info in MODELS.values())


def test_datasets_as_json(call):
    listed = {entry["name"]: entry for entry in json.loads(call("datasets", "--json").out)}
    assert (listed["digits"]["nodes"], listed["digits"]["place"]) == (1797, "built in")
    assert listed["cora"]["protocols"][0] == "random"


def test_one_dataset_shows_its_options(call):
    answer = call("datasets", "Digits")
    assert answer.code == 0
    assert "per_class" in answer.out
    assert json.loads(call("datasets", "digits", "--json").out)["options"]["num_splits"] == 10
    unknown = call("datasets", "digit")
    assert unknown.code == 2
    assert "did you mean digits" in unknown.err


def test_models_are_listed_and_explained(call):
    listed = call("models").out
    assert "difformer-s" in listed
    assert "None of them predicts links" in listed
    assert {"mlp", "gcn"} <= {entry["name"] for entry in json.loads(call("models", "--json").out)}
    one = call("models", "difformer-s")
    assert "E₂ pairs" not in listed
    assert all(word in one.out for word in ("N nodes, E edges, E₂ pairs at two hops, d channels", "1 + qᵢᵀkⱼ"))
    assert "graph_weight" in one.out
    assert "learning_rate" in one.out
    assert "public-code" in one.out
    assert json.loads(call("models", "mlp", "--json").out)["options"]["hidden_channels"] == 64
    assert "did you mean 'mlp'" in call("models", "mpl").err
    begun = "unknown model 'dif'; did you mean 'difformer-s'? Other names with this prefix: difformer-a, "
    assert begun in call("models", "dif").err
    assert "did you mean 'gcn'" in call("models", "GCN").err


def test_presets_are_listed_with_their_score(call):
    from difformer.experiments.presets import find_preset

    preset = find_preset("paper", model="gat", dataset="cora")
    listed = call("models", "gat").out
    row = next(line.split() for line in listed.splitlines() if line.split()[:2] == ["cora", "paper"])
    assert row[2:6] == [preset.protocol, preset.metric, f"{preset.validation:.4g}", str(preset.trials)]
    assert "`difformer models gat --json` adds their values" in listed
    full = [one for one in json.loads(call("models", "gat", "--json").out)["presets"] if one["name"] == "paper"]
    (found,) = [one for one in full if one["dataset"] == "cora"]
    assert (found["command"], found["settings"]) == (preset.command, dict(preset.settings))
    assert "There is no preset for diffusion-gaussian" in call("models", "diffusion-gaussian").out


def test_a_closed_pipe_is_not_an_error(environment, tmp_path):
    code = (
        "import os, sys; from difformer.cli import main\n"
        "read, write = os.pipe(); os.dup2(write, 1); os.close(write); os.close(read)\n"
        "main(['datasets'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stderr == ""


def test_out_of_memory_says_what_to_try(call, monkeypatch):
    import difformer.data.download as download

    class OutOfMemoryError(RuntimeError):
        """As torch raises it."""

    def fail(*_, **__):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(download, "list_datasets", fail)
    answer = call("datasets")
    assert answer.code == 2
    assert "error: out of memory (CUDA out of memory); try --batch-size" in answer.err


def test_out_of_memory_on_a_cpu_does_not_advise_the_cpu(call, monkeypatch):
    import difformer.data.download as download

    def fail(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 8 bytes")

    monkeypatch.setattr(download, "list_datasets", fail)
    answer = call("datasets")
    assert answer.code == 2
    assert "try --batch-size, fewer hidden_channels or --set precision=bf16\n" in answer.err


def test_every_setting_of_every_model_is_explained(call):
    """The meanings come from docstrings: one that lacks an argument leaves a hole in the table."""
    from difformer.zoo.model_catalogue import MODELS

    for name in MODELS:
        document = json.loads(call("models", name, "--json").out)
        for part in ("options", "training"):
            assert document["meanings"][part].keys() == document[part].keys()
            holes = [key for key, meaning in document["meanings"][part].items() if not meaning]
            assert not holes, f"{name}: {holes}"
    shown = call("models", "difformer-s").out
    assert "τ in (0, 1]" in shown
    assert all(word in shown for word in ("coupling", "energy", "cost per layer"))


def test_every_option_of_every_data_set_is_explained(call):
    from difformer.data.catalogue import ENTRIES

    for name in ENTRIES:
        document = json.loads(call("datasets", name, "--json").out)
        holes = [key for key, meaning in document["meanings"].items() if not meaning or "module" in meaning]
        assert not holes, f"{name}: {holes}"


def test_dataset_list_gives_units_and_missing_files(call, monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path))
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "cache"))
    rows = {line.split()[0]: line for line in call("datasets").out.splitlines() if line.strip()}
    assert "graphs × ~21" in rows["synmol"]
    assert "521 snapshots × 20" in rows["chickenpox"]
    assert "lacks features" in rows["cifar10"]
    assert "lacks" not in rows["cora"]
    assert "cifar10/cifar10_simclr.npz" in call("datasets", "cifar10").out


def test_presets_named_in_guide_and_help_exist(call):
    import re

    from difformer.experiments.presets import load_presets

    known = {preset.name for preset in load_presets()}
    guide = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--preset ([a-z-]+)(?=[\s`])", guide))
    assert named
    assert named <= known
    help_text = " ".join(call("fit", "--help").out.split())
    assert "paper, public-code, best" not in help_text
