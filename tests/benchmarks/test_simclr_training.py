"""SimCLR trained, interrupted and resumed; encoders and features on disk."""

import numpy as np
import pytest
import torch
from pictures import blobs

from benchmarks.simclr import (
    ResNet18,
    SimCLRConfig,
    ViewConfig,
    encode,
    linear_probe,
    load_encoder,
    load_features,
    save_encoder,
    save_features,
    train_simclr,
)
from benchmarks.simclr.config import learning_rate_at

# --- training --------------------------------------------------------------------------------------------------------

TINY = {"epochs": 4, "batch_size": 16, "width": 4, "warmup_epochs": 1, "device": "cpu", "progress": False}


def test_schedule_rises_then_falls_to_zero():
    config = SimCLRConfig(epochs=20, warmup_epochs=2, learning_rate=0.4)
    rates = [learning_rate_at(t, 5, config) for t in range(100)]
    assert rates[0] == pytest.approx(0.04)
    assert rates[9] == pytest.approx(0.4)
    assert rates[10] == pytest.approx(0.4)
    assert rates[55] == pytest.approx(0.2)
    assert rates[-1] < 1e-3
    assert np.all(np.diff(rates[10:]) < 0)


def test_training_lowers_the_loss_and_separates_classes():
    images, labels = blobs(64, side=8)
    result = train_simclr(images, **{**TINY, "epochs": 12, "views": ViewConfig(hue=0, grayscale=0)})
    assert len(result.losses) == 12
    assert result.losses[-1] < result.losses[0] - 0.3
    features = encode(result.encoder, images)
    assert features.shape == (64, 32)
    assert linear_probe(features, labels, per_class=4).mean > 0.9


class Interrupted(Exception):
    pass


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    images, _ = blobs(40, side=8)
    path = tmp_path / "run" / "simclr.pt"
    whole = train_simclr(images, **TINY)

    def interrupt(epoch, loss):
        if epoch == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_simclr(images, **TINY, checkpoint=path, checkpoint_every=2, on_epoch=interrupt)
    torch.rand(17)  # what else the process draws must not matter
    epochs = []
    resumed = train_simclr(
        images, **TINY, checkpoint=path, checkpoint_every=2, on_epoch=lambda epoch, _: epochs.append(epoch)
    )
    assert epochs == [3, 4]
    assert resumed.losses == whole.losses
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(tensor, resumed.encoder.state_dict()[name]), name
    assert [file.name for file in path.parent.iterdir()] == ["simclr.pt"]

    again = train_simclr(images, **TINY, checkpoint=path, on_epoch=lambda *_: pytest.fail("nothing is left to train"))
    assert again.losses == whole.losses
    assert again.images_per_second == 0


def test_the_seed_decides_and_the_global_state_does_not():
    images, _ = blobs(32, side=8)
    options = {**TINY, "epochs": 1}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train_simclr(images, **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert train_simclr(images, **options).losses == first.losses
    assert train_simclr(images, **options, seed=1).losses != first.losses


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"temperature": 0.5}, "temperature is 0.2 there and 0.5 here"),
        ({"views": ViewConfig(flip=0)}, "views is"),
        ({"epochs": 2}, "epochs is 1 there and 2 here"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, complaint):
    images, _ = blobs(16, side=8)
    path = tmp_path / "simclr.pt"
    train_simclr(images, **{**TINY, "epochs": 1}, checkpoint=path)
    with pytest.raises(ValueError, match=complaint):
        train_simclr(images, **{**TINY, "epochs": 1, **change}, checkpoint=path)


def test_a_checkpoint_of_other_images_or_a_broken_one_is_refused(tmp_path):
    images, _ = blobs(16, side=8)
    path = tmp_path / "simclr.pt"
    options = {**TINY, "epochs": 1, "checkpoint": path}
    train_simclr(images, **options)
    with pytest.raises(ValueError, match="other images"):
        train_simclr(255 - images, **options)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"simclr\.pt cannot be read .* delete it"):
        train_simclr(images, **options)


def test_mixed_precision_stays_near_and_keeps_weights_in_float32():
    images, _ = blobs(32, side=8)
    options = {**TINY, "epochs": 1}
    exact, mixed = train_simclr(images, **options), train_simclr(images, **options, precision="bfloat16")
    assert {p.dtype for p in mixed.encoder.parameters()} == {torch.float32}
    assert mixed.losses != exact.losses
    assert mixed.losses == pytest.approx(exact.losses, rel=0.05)


def test_a_non_finite_loss_is_an_error():
    images, _ = blobs(32, side=8)
    with pytest.raises(FloatingPointError, match=r"lower learning_rate \(now 1e\+30\)"):
        train_simclr(images, **TINY, learning_rate=1e30)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"precision": "int8"}, "precision must be"),
    ],
)
def test_options_out_of_range_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        train_simclr(blobs(16, side=8)[0], **{**TINY, **options})


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (np.zeros((4, 3, 8, 8), np.uint8), r"transpose\(0, 2, 3, 1\)"),
        (np.zeros((4, 8, 8, 3), np.float32), "must be uint8 with values 0 to 255, got float32"),
        (np.zeros((0, 8, 8, 3), np.uint8), "empty"),
        (np.zeros((4, 8, 8), np.uint8), r"shape \[N, H, W, 3\], got \(4, 8, 8\)"),
        ([[1]], "numpy array"),
    ],
)
def test_invalid_images_are_refused(images, complaint):
    with pytest.raises(ValueError, match=complaint):
        train_simclr(images)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_the_gpu(tmp_path):
    images, labels = blobs(256, side=32)
    options = {**TINY, "device": "cuda", "width": 16, "epochs": 20, "batch_size": 64}
    result = train_simclr(images, **options, views=ViewConfig(hue=0, grayscale=0), checkpoint=tmp_path / "c.pt")
    assert linear_probe(encode(result.encoder, images), labels, per_class=8).mean > 0.9
    on_cpu = encode(result.encoder, images, device="cpu", precision="float32")
    on_gpu = encode(result.encoder, images, device="cuda", precision="float32")
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


# --- encoding and files ----------------------------------------------------------------------------------------------


def test_encoding_does_not_depend_on_the_batch():
    encoder = ResNet18(width=4).train()
    images, _ = blobs(10)
    whole = encode(encoder, images)
    np.testing.assert_allclose(encode(encoder, images, batch_size=3), whole, rtol=1e-4, atol=1e-5)
    half = encode(encoder, images, dtype="float16")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, whole, rtol=1e-3, atol=1e-3)


def test_features_come_back_with_how_they_were_made(tmp_path):
    features = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float16)
    path = save_features(tmp_path / "deep" / "f.npz", features, method="pca", labels=np.arange(5), metadata={"dim": 3})
    back, metadata = load_features(path)
    np.testing.assert_array_equal(back, features)
    assert back.dtype == np.float16
    assert metadata == {"method": "pca", "dim": 3}
    assert np.load(path, allow_pickle=False)["labels"].tolist() == [0, 1, 2, 3, 4]


def test_metadata_of_a_run_can_be_kept(tmp_path):
    images, _ = blobs(16, side=8)
    result = train_simclr(images, **{**TINY, "epochs": 1})
    features = encode(result.encoder, images)
    path = save_features(tmp_path / "f.npz", features, method="simclr", metadata=result.metadata())
    assert load_features(path)[1]["config"]["temperature"] == 0.2
    twin = load_encoder(save_encoder(tmp_path / "e.safetensors", result.encoder, metadata=result.metadata()))
    np.testing.assert_array_equal(encode(twin, images), features)


@pytest.mark.parametrize(
    ("features", "options", "complaint"),
    [
        (np.zeros(3), {}, r"shape \[N, D\]"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), {}, "NaN or infinity in 1 of 2 rows"),
        (np.zeros((3, 2)), {"labels": np.zeros(4)}, "labels has 4 entries but features has 3 rows"),
    ],
)
def test_features_that_make_no_sense_are_not_written(tmp_path, features, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        save_features(tmp_path / "f.npz", features, method="own", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_features(tmp_path / "f.npz", np.ones((2, 2)), method="own")
    old = path.read_bytes()

    def half(file, **arrays):
        file.write(b"half")
        raise Interrupted

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(Interrupted):
        save_features(path, np.zeros((2, 2)), method="own")
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]
