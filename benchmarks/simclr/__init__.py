"""SimCLR: features of images, learned without labels; `difformer.data.load` reads the file that is written here.

    result = train_simclr(images, epochs=200, checkpoint="simclr.pt")
    features = encode(result.encoder, images, dtype="float16")
    save_features("cifar10_simclr.npz", features, method="simclr", metadata=result.metadata())

``linear_probe`` tells how good any features are.
"""

from benchmarks.simclr.augment import ViewConfig, random_views
from benchmarks.simclr.config import SimCLRConfig
from benchmarks.simclr.contrast import nt_xent
from benchmarks.simclr.encoding import encode
from benchmarks.simclr.probe import ProbeResult, linear_probe, probe_table
from benchmarks.simclr.resnet import ResNet18
from benchmarks.simclr.simclr import SimCLRResult, train_simclr
from benchmarks.simclr.storage import load_encoder, load_features, save_encoder, save_features

__all__ = [
    "ProbeResult",
    "ResNet18",
    "SimCLRConfig",
    "SimCLRResult",
    "ViewConfig",
    "encode",
    "linear_probe",
    "load_encoder",
    "load_features",
    "nt_xent",
    "probe_table",
    "random_views",
    "save_encoder",
    "save_features",
    "train_simclr",
]
