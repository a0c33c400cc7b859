"""Runs of earlier versions, which called a split "20 a class/…", are resumed and compared."""

from dataclasses import replace

import pytest
from small_tasks import blocks

from difformer.report import compare_runs
from difformer.training import RunFolder, RunFolderError, TrainConfig, fit, resume

CONFIG = TrainConfig(options={"hidden_channels": 8}, epochs=6, learning_rate=0.05, checkpoint_every=2)


def named(*names):
    task = blocks()
    return task.with_splits(replace(task.splits[0], name=name) for name in names)


class Stop:
    def on_epoch(self, event):
        if event.epoch == 5:
            raise RuntimeError("the light went out")


def test_interrupted_run_with_the_former_name_resumes(tmp_path):
    today, former = named("3 per class/5/rest/seed=0"), named("3 a class/5/rest/seed=0")
    whole = fit(today, CONFIG, seeds=1, out=tmp_path / "whole", device="cpu", stacked=False)
    with pytest.raises(RuntimeError, match="light"):
        fit(former, CONFIG, seeds=1, out=tmp_path / "run", device="cpu", stacked=False, callbacks=[Stop()])
    again = resume(tmp_path / "run", task=today, device="cpu")
    assert {**again.results[0], "seconds": 0} == {**whole.results[0], "seconds": 0}


def test_finished_run_with_the_former_name_is_read_and_compared(tmp_path):
    for folder, name in (("old", "3 a class/5/rest/seed=0"), ("new", "3 per class/5/rest/seed=0")):
        fit(named(name), CONFIG, seeds=1, out=tmp_path / folder, device="cpu")
    assert RunFolder.open(tmp_path / "old").results()[0]["split"] == "3 per class/5/rest/seed=0"
    assert compare_runs([tmp_path / "old", tmp_path / "new"]).against_first[0].pairs == 1


def test_checkpoint_of_another_split_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="light"):
        fit(named("first"), CONFIG, seeds=1, out=tmp_path / "run", device="cpu", stacked=False, callbacks=[Stop()])
    with pytest.raises(RunFolderError, match="is of split 'first', this run has 'second'"):
        resume(tmp_path / "run", task=named("second"), device="cpu")
