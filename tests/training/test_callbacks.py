import sys

import pytest
import torch
from small_tasks import blocks

from difformer.training import Callback, TrainConfig, fit
from difformer.training.callbacks import TensorBoard
from difformer.training.devices import resolve

CONFIG = TrainConfig(options={"hidden_channels": 8}, epochs=3)


def test_callbacks_receive_events_and_are_closed():
    class Watch:
        def __init__(self):
            self.events, self.closed = [], 0

        def on_epoch(self, event):
            self.events.append(event)

        def close(self):
            self.closed += 1

    watch = Watch()
    assert isinstance(watch, Callback)
    summary = fit(blocks(), CONFIG, seeds=2, device="cpu", callbacks=[watch], stacked=False)
    assert [(e.seed, e.epoch, e.epochs) for e in watch.events] == [(s, e, 3) for s in (0, 1) for e in (1, 2, 3)]
    assert watch.closed == 1
    for event, row in zip(watch.events[:3], summary.records[0].history, strict=True):
        assert (event.loss, event.valid_metric, event.test_metric) == (row["loss"], row["valid"], row["test"])
    assert watch.events[2].best_valid == summary.records[0].valid


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = fit(blocks(), CONFIG, seeds=2, device="cpu", callbacks=[TensorBoard(tmp_path)], stacked=False)
    events = EventAccumulator(str(tmp_path / "seed-1"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "train", "valid", "test"}
    written = [scalar.value for scalar in events.Scalars("loss")]
    assert written == pytest.approx([row["loss"] for row in summary.records[1].history])


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'difformer\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_device_names_are_resolved():
    assert resolve("cpu") == torch.device("cpu")
    assert resolve("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda"):
        resolve("toaster")
    with pytest.raises(ValueError, match="'cuda:99' is not available"):
        resolve("cuda:99")
