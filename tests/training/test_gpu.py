"""Training on a GPU; needs one."""

import pytest
import torch
from small_tasks import blocks, many_labels, point_sets, series

from difformer.training import TrainConfig, evaluate, fit, loop, predict, resume, train_one

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIG = TrainConfig(options={"hidden_channels": 8, "dropout": 0.2}, epochs=8, learning_rate=0.02)


@pytest.mark.parametrize("make", [blocks, lambda: blocks(sparse=True), many_labels, series, point_sets])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_gpu_trains_what_a_cpu_trains(make, dropout):
    """Initialisation, masks and batches are the same everywhere, so curves differ by rounding alone."""
    task = make()
    config = CONFIG.replace(options={"hidden_channels": 8, "dropout": dropout})
    records = [train_one(task, 0, config, 1, device) for device in ("cuda", "cpu")]
    for mine, theirs in zip(*(record.history for record in records), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    torch.testing.assert_close(records[0].outputs, records[1].outputs, atol=1e-2, rtol=1e-2)
    assert records[0].outputs.device.type == "cpu"


@pytest.mark.parametrize("model", ["difformer-s", "difformer-a", "gcn", "mlp"])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_mini_batches_and_mixed_precision(model, batch_size):
    for precision in ("float32", "bf16"):
        config = CONFIG.replace(model=model, batch_size=batch_size, precision=precision, epochs=30)
        assert train_one(blocks(), 0, config, 0, "cuda").test > 0.7


def test_a_run_folder_made_on_a_gpu(tmp_path):
    class Stop:
        def on_epoch(self, event):
            if event.epoch == 6:
                raise RuntimeError("the light went out")

    config = CONFIG.replace(checkpoint_every=2)
    with pytest.raises(RuntimeError, match="light"):
        fit(blocks(), config, seeds=1, out=tmp_path / "run", device="cuda", callbacks=[Stop()], stacked=False)
    summary = resume(tmp_path / "run", task=blocks())
    whole = fit(blocks(), config, seeds=1, device="cuda", stacked=False)
    assert [row["epoch"] for row in summary.records[0].history] == list(range(1, 9))
    for mine, theirs in zip(summary.records[0].history, whole.records[0].history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    for device in ("cpu", "cuda"):
        values = evaluate(tmp_path / "run", task=blocks(), device=device)[0].values
        assert values["accuracy"]["test"] == pytest.approx(summary.results[0]["test"], abs=0.06)
        assert predict(tmp_path / "run", blocks().x[:3], task=blocks(), device=device).outputs.shape == (3, 3)


@pytest.mark.parametrize("model", ["difformer-s", "difformer-a", "gcn", "mlp"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recorded_epochs_are_launched_epochs(model, dropout, monkeypatch):
    config = CONFIG.replace(
        model=model, options={"hidden_channels": 8, "dropout": dropout}, epochs=20, gradient_clip=1.0
    )
    recorded = train_one(blocks(), 0, config, 0, "cuda")
    trainer = loop.Trainer(blocks(), blocks().splits[0], config, 0, torch.device("cuda"))
    assert trainer.captured is not None
    monkeypatch.setattr(loop.Trainer, "_can_capture", lambda self: False)
    launched = train_one(blocks(), 0, config, 0, "cuda")
    for mine, theirs in zip(recorded.history, launched.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    torch.testing.assert_close(recorded.outputs, launched.outputs, atol=1e-3, rtol=1e-3)
