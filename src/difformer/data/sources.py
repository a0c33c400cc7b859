"""Where every data set comes from: its files, their official addresses and, where known, their checksums.

A data set may come in several *forms*, each a set of files that suffices alone: arrays prepared for this package, or
the files as their authors publish them. Forms are tried in order; the first one that has addresses is what is
downloaded. Paths are relative to any of the folders that are searched, and the same in all of them. No torch here:
the list of data sets must be printed in no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from difformer.data.checksums import PLANETOID_PARTS, PLANETOID_SHA256


@dataclass(frozen=True)
class RemoteFile:
    """One file of a form.

    Args:
        path: Place relative to a data folder, with forward slashes.
        url: Official address; None for what can only be put there by hand.
        checksum: ``"sha256:…"`` or ``"md5:…"``; None where the source publishes none, and the first download's is kept.
        size: Bytes, where known.
        magic: Bytes the file must begin with: an error page under a file's address does not.
    """

    path: str
    url: str | None = None
    checksum: str | None = None
    size: int | None = None
    magic: bytes | None = None

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Form:
    """Files that together are a data set.

    Args:
        name: How readers tell forms apart.
        files: All of them are needed.
    """

    name: str
    files: tuple[RemoteFile, ...]

    @property
    def downloadable(self) -> bool:
        return all(file.url is not None for file in self.files)


PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
HETEROPHILOUS_URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
TEMPORAL_URL = "https://raw.githubusercontent.com/benedekrozemberczki/pytorch_geometric_temporal/master/dataset"
GNN_BENCHMARK_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
FACEBOOK_URL = "https://github.com/CUAI/Non-Homophily-Large-Scale/raw/master/data/facebook100"
ZENODO_URL = "https://zenodo.org/record/7265547/files"
SNAP_URL = "https://snap.stanford.edu/data"

ZIP, GZIP, MAT, JSON = b"PK\x03\x04", b"\x1f\x8b", b"MATLAB 5.0 MAT-file", b"{"


def _planetoid(title: str) -> tuple[Form, ...]:
    name = title.lower()
    raw = tuple(
        RemoteFile(f"planetoid/{title}/raw/ind.{name}.{part}", f"{PLANETOID_URL}/ind.{name}.{part}", f"sha256:{sha}")
        for part, sha in zip(PLANETOID_PARTS, PLANETOID_SHA256[title], strict=True)
    )
    return Form("arrays", (RemoteFile(f"planetoid/{name}.npz"),)), Form("raw", raw)


def _heterophilous(stem: str, sha: str) -> tuple[Form, ...]:
    file = RemoteFile(f"heterophilous/{stem}.npz", f"{HETEROPHILOUS_URL}/{stem}.npz", f"sha256:{sha}", magic=ZIP)
    return (Form("arrays", (file,)),)


def _temporal(stem: str, sha: str | None = None) -> tuple[Form, ...]:
    checksum = f"sha256:{sha}" if sha else None
    return (Form("json", (RemoteFile(f"temporal/{stem}.json", f"{TEMPORAL_URL}/{stem}.json", checksum, magic=JSON),)),)


def _gnn_benchmark(stem: str, published: str) -> tuple[Form, ...]:
    file = RemoteFile(f"gnn_benchmark/{published}.npz", f"{GNN_BENCHMARK_URL}/{published}.npz", magic=ZIP)
    return Form("arrays", (RemoteFile(f"gnn_benchmark/{stem}.npz"),)), Form("published", (file,))


def _facebook(school: str, published: str | None = None) -> tuple[Form, ...]:
    url = f"{FACEBOOK_URL}/{(published or school).replace(' ', '%20')}.mat"
    file = RemoteFile(f"facebook100/{school}.mat", url, magic=MAT)
    return Form("arrays", (RemoteFile(f"facebook100/{school}.npz"),)), Form("mat", (file,))


def _files(folder: str, *names: str) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{folder}/{name}") for name in names)


PROTEINS_MEMBERS = (
    "raw/edge.csv.gz",
    "raw/edge-feat.csv.gz",
    "raw/num-node-list.csv.gz",
    "raw/num-edge-list.csv.gz",
    "raw/node_species.csv.gz",
    "raw/node-label.csv.gz",
    "split/species/train.csv.gz",
    "split/species/valid.csv.gz",
    "split/species/test.csv.gz",
)
STL10_MEMBERS = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
# A file of Google Drive, where the authors of LINKX keep it; this host hands large files over without a question page.
_POKEC_MAT = "https://drive.usercontent.google.com/download?confirm=t&id=1dNs5E7BrWJbgcHeQ_zuy5Ozp2tRCWG0y"

# Whose default features are learned, not downloaded.
LEARNED = ("cifar10", "stl10")


def features_path(name: str) -> str:
    """Where in a data folder the SimCLR features of a data set are looked for."""
    return f"{name}/{name}_simclr.npz"


FORMS: dict[str, tuple[Form, ...]] = {
    "cora": _planetoid("Cora"),
    "citeseer": _planetoid("CiteSeer"),
    "pubmed": _planetoid("PubMed"),
    "chameleon": _heterophilous(
        "chameleon_filtered", "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5"
    ),
    "squirrel": _heterophilous("squirrel_filtered", "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7"),
    "chameleon-unfiltered": _heterophilous(
        "chameleon", "4c640bd2877fc4f9f101531e2f977bc16445a54e09a5cb01178df608e552f3fd"
    ),
    "squirrel-unfiltered": _heterophilous(
        "squirrel", "d436e3b42c0546b105241c0ab0766097074e68e55f67b133eeb9b0162e55cbd9"
    ),
    "actor": _heterophilous("actor", "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816"),
    "ogbn-proteins": (
        Form("folder", _files("ogbn_proteins", *PROTEINS_MEMBERS)),
        Form(
            "archive",
            (
                RemoteFile(
                    "ogbn_proteins/proteins.zip",
                    "https://snap.stanford.edu/ogb/data/nodeproppred/proteins.zip",
                    magic=ZIP,
                ),
            ),
        ),
    ),
    "pokec": (
        Form("linkx", (RemoteFile("pokec/pokec.mat", _POKEC_MAT, magic=MAT),)),
        Form(
            "snap",
            tuple(
                RemoteFile(f"pokec/soc-pokec-{part}.txt.gz", f"{SNAP_URL}/soc-pokec-{part}.txt.gz", magic=GZIP)
                for part in ("profiles", "relationships")
            ),
        ),
    ),
    "chickenpox": _temporal("chickenpox", "724b48cfb274b2ecbb855bdb99b970b5ef9dd3671694fa477435dc1e08293735"),
    "covid": _temporal("england_covid", "497056cc4585b58951fd5cd17554fe0c535f68ea0c907a5b5727ae30e3913450"),
    "wikimath": _temporal("wikivital_mathematics"),
    "cifar10": (
        Form("subset", _files("cifar10", "cifar10_15000.npz")),
        Form(
            "binary",
            (
                RemoteFile(
                    "cifar10/cifar-10-binary.tar.gz",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                    170_052_171,
                ),
            ),
        ),
    ),
    "stl10": (
        Form("folder", _files("stl10/stl10_binary", *STL10_MEMBERS)),
        Form(
            "archive",
            (
                RemoteFile(
                    "stl10/stl10_binary.tar.gz",
                    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                    "md5:91f7769df0f17e558f3565bffb0c7dfb",
                    2_640_397_119,
                ),
            ),
        ),
    ),
    "20news": (
        Form("text", _files("20news", "20news10.jsonl.gz")),
        Form("features", _files("20news", "20news10_features.npz")),
        Form(
            "archive",
            (
                RemoteFile(
                    "20news/20news-bydate.tar.gz",
                    "https://ndownloader.figshare.com/files/5975967",
                    "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
                ),
            ),
        ),
    ),
    "synmol": (
        Form("arrays", _files("synmol", "synmol.npz")),
        Form("raw", (RemoteFile("synmol/synmol_raw.zip", f"{ZENODO_URL}/synmol_raw.zip", magic=ZIP),)),
    ),
    "actstrack": (
        Form("processed-folder", _files("actstrack/processed_2T", "data_2T.pt")),
        Form("raw-folder", _files("actstrack/raw_2T", "signal_events_2T.pkl", "bkg_events_2T.pkl")),
        Form(
            "processed",
            (
                RemoteFile(
                    "actstrack/actstrack_processed_2T.zip", f"{ZENODO_URL}/actstrack_processed_2T.zip", magic=ZIP
                ),
            ),
        ),
        Form("raw", (RemoteFile("actstrack/actstrack_raw_2T.zip", f"{ZENODO_URL}/actstrack_raw_2T.zip", magic=ZIP),)),
    ),
    "amazon-photo": _gnn_benchmark("amazon_photo", "amazon_electronics_photo"),
    "amazon-computers": _gnn_benchmark("amazon_computers", "amazon_electronics_computers"),
    "coauthor-cs": _gnn_benchmark("coauthor_cs", "ms_academic_cs"),
    "coauthor-physics": _gnn_benchmark("coauthor_physics", "ms_academic_phy"),
    "facebook100-reed98": _facebook("Reed98"),
    "facebook100-johnshopkins55": _facebook("JohnsHopkins55", "Johns Hopkins55"),
    "facebook100-cornell5": _facebook("Cornell5"),
    "facebook100-amherst41": _facebook("Amherst41"),
    "facebook100-penn94": _facebook("Penn94"),
    "deezer-europe": (
        Form("arrays", _files("deezer_europe", "deezer_europe.npz")),
        Form("archive", (RemoteFile("deezer_europe/deezer_europe.zip", f"{SNAP_URL}/deezer_europe.zip", magic=ZIP),)),
    ),
}
