"""Features of images: learned without labels by SimCLR, or computed from pixels where there is no GPU.

    result = train_simclr(images, epochs=200, checkpoint="simclr.pt")
    features = encode(result.encoder, images, dtype="float16")
    save_features("cifar10_simclr.npz", features, method="simclr", metadata=result.metadata())

``pca_features`` and ``hog_features`` are the cheap, deterministic stand-ins; ``linear_probe`` tells how good any is.
"""

from difformer.data.features.augment import ViewConfig, random_views
from difformer.data.features.config import SimCLRConfig
from difformer.data.features.contrast import nt_xent
from difformer.data.features.encoding import encode
from difformer.data.features.images import shrink_images
from difformer.data.features.pixels import hog_features, pca_features
from difformer.data.features.probe import ProbeResult, linear_probe, probe_table
from difformer.data.features.resnet import ResNet18
from difformer.data.features.simclr import SimCLRResult, train_simclr
from difformer.data.features.storage import load_encoder, load_features, save_encoder, save_features

__all__ = [
    "ProbeResult",
    "ResNet18",
    "SimCLRConfig",
    "SimCLRResult",
    "ViewConfig",
    "encode",
    "hog_features",
    "linear_probe",
    "load_encoder",
    "load_features",
    "nt_xent",
    "pca_features",
    "probe_table",
    "random_views",
    "save_encoder",
    "save_features",
    "shrink_images",
    "train_simclr",
]
