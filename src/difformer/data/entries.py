"""What every data set is: kind, size, protocols, terms.

Sizes are those of the data as loaded by default: undirected edges without self-loops and duplicates, so that some
differ from the counts of raw links that papers print. No torch here: `difformer datasets` must answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from difformer.data.sources import FORMS

BUILT_IN = "built in"


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before any of it is read.

    Args:
        name: How it is called in `load`.
        about: One line.
        kind: ``"nodes"``, ``"series"`` or ``"graphs"``.
        metric: What is reported.
        nodes: Number of nodes or instances; of a typical graph for ``"graphs"``; None where the caller says.
        edges: Undirected ones, each counted once; of a graph whose directions are kept the directed ones, over all
            snapshots; None without a graph, or where nobody knows before the files are there.
        directed: Whether directions are kept; otherwise a task lists both of every edge, and a self-loop a node.
        links: What papers print instead: raw links, repeated ones and both directions of some counted; None where it
            is the same.
        features: Columns of ``x`` by default.
        outputs: Classes, or target columns.
        length: Snapshots of a series as published, or number of graphs.
        protocols: Names that ``protocol=`` takes, the default first; empty where there is only one way.
        licence: Terms of the source.
        loader: ``"module:function"`` in `difformer.data`.
    """

    name: str
    about: str
    kind: str
    metric: str
    loader: str
    nodes: int | None = None
    edges: int | None = None
    directed: bool = False
    links: int | None = None
    features: int | None = None
    outputs: int | None = None
    length: int | None = None
    protocols: tuple[str, ...] = ()
    licence: str = "none stated"

    @property
    def source(self) -> str:
        """Official address, or where it comes from otherwise."""
        for form in FORMS.get(self.name, ()):
            if form.downloadable and form.files[0].url is not None:
                return form.files[0].url
        return BUILT_IN


_UCI = "CC BY 4.0 (UCI), through scikit-learn"
_MIT = "MIT"


def _graph(name: str, about: str, loader: str, size: tuple[int, int, int, int], **rest: Any) -> Entry:
    """Classes of the nodes of one graph; `size` is nodes, edges, features, classes."""
    nodes, edges, features, outputs = size
    rest = {"metric": "accuracy", **rest}
    return Entry(
        name, about, "nodes", loader=loader, nodes=nodes, edges=edges, features=features, outputs=outputs, **rest
    )


def _citation(name: str, about: str, size: tuple[int, int, int, int], links: int) -> Entry:
    protocols = ("random", "authors", "public", "public-code")
    return _graph(name, about, "datasets.planetoid:planetoid", size, links=links, protocols=protocols, licence=_MIT)


def _wikipedia(name: str, about: str, size: tuple[int, int, int, int], links: int | None = None) -> Entry:
    loader = "datasets.wikipedia:wikipedia"
    return _graph(name, about, loader, size, links=links, protocols=("published",), licence=_MIT)


def _benchmark(name: str, about: str, size: tuple[int, int, int, int]) -> Entry:
    protocols = ("20/30", "60/20/20")
    return _graph(name, about, "datasets.gnn_benchmark:gnn_benchmark", size, protocols=protocols, licence=_MIT)


def _school(name: str, where: str, size: tuple[int, int, int, int]) -> Entry:
    about, protocols = f"friends at {where} in 2005, by gender", ("50/25/25", "10/10/80")
    return _graph(f"facebook100-{name}", about, "datasets.facebook100:facebook100", size, protocols=protocols)


def _series(
    name: str, about: str, nodes: int, edges: int | None, *, directed: bool = True, lags: int, length: int
) -> Entry:
    return Entry(
        name,
        about,
        "series",
        "mse",
        f"datasets.temporal:{name}",
        nodes=nodes,
        edges=edges,
        directed=directed,
        features=lags,
        outputs=1,
        length=length,
        protocols=("paper", "public-code"),
        licence=_MIT,
    )


def _particles(name: str, about: str, nodes: int, features: int, length: int, licence: str) -> Entry:
    return Entry(
        name,
        about,
        "graphs",
        "rocauc",
        f"datasets.particles:{name}",
        nodes=nodes,
        features=features,
        outputs=1,
        length=length,
        protocols=("paper", "lri", "public-code"),
        licence=licence,
    )


def _table(name: str, about: str, size: tuple[int, int, int], **rest: Any) -> Entry:
    """Classes of instances without a graph; `size` is instances, features, classes."""
    nodes, features, outputs = size
    rest = {"loader": "datasets.embedded:table", "protocols": ("random",), "licence": _UCI, **rest}
    return Entry(name, about, "nodes", "accuracy", nodes=nodes, features=features, outputs=outputs, **rest)


def _generated(name: str, about: str, metric: str = "accuracy", **rest: Any) -> Entry:
    return Entry(name, about, "nodes", metric, f"generators:{name.replace('-', '_')}", licence="not needed", **rest)


_ALL = (
    _citation("cora", "machine-learning papers and citations, by topic", (2708, 5278, 1433, 7), 5429),
    _citation("citeseer", "computer-science papers and citations, by topic", (3327, 4552, 3703, 6), 4732),
    _citation("pubmed", "papers on diabetes and citations, by type", (19717, 44324, 500, 3), 44338),
    _wikipedia("chameleon", "Wikipedia pages by traffic, duplicates filtered out", (890, 8854, 2325, 5)),
    _wikipedia("squirrel", "Wikipedia pages by traffic, duplicates filtered out", (2223, 46998, 2089, 5)),
    _wikipedia("chameleon-unfiltered", "Wikipedia pages by traffic, duplicates left in", (2277, 31371, 2325, 5), 31421),
    _wikipedia(
        "squirrel-unfiltered", "Wikipedia pages by traffic, duplicates left in", (5201, 198353, 2089, 5), 198493
    ),
    _wikipedia("actor", "actors named on one page, by kind", (7600, 26659, 932, 5), 30019),
    _graph(
        "ogbn-proteins",
        "protein associations of eight species, 112 functions",
        "datasets.proteins:proteins",
        (132534, 39561252, 8, 112),
        metric="rocauc",
        protocols=("species",),
        licence="CC0",
    ),
    _graph(
        "pokec",
        "Slovak social network, by gender",
        "datasets.pokec:pokec",
        (1632803, 22301964, 65, 2),
        links=30622564,
        protocols=("paper", "public-code"),
    ),
    _series("chickenpox", "weekly cases in Hungarian counties", 20, 41, directed=False, lags=4, length=521),
    _series("covid", "daily cases in English regions, a mobility graph a day", 129, 82529, lags=8, length=61),
    _series("wikimath", "daily visits of mathematics pages", 1068, None, lags=14, length=731),
    _table(
        "cifar10",
        "small photographs, by what they show",
        (15000, 512, 10),
        loader="datasets.images:images",
        protocols=("paper",),
        licence="none stated",
    ),
    _table(
        "stl10",
        "photographs, by what they show",
        (13000, 512, 10),
        loader="datasets.images:images",
        protocols=("paper",),
        licence="none stated",
    ),
    _table(
        "20news",
        "newsgroup posts as TF-IDF, ten groups",
        (9607, 236, 10),
        loader="datasets.texts:twenty_news",
        protocols=("paper",),
        licence="none stated",
    ),
    _particles("synmol", "molecules in space: carbonyl and unbranched alkane", 21, 17, 8665, "Apache-2.0"),
    _particles("actstrack", "particle tracks: z → μμ among pile-up", 109, 12, 3241, "see Zenodo record 7265547"),
    _benchmark("amazon-photo", "goods bought together, by category", (7650, 119081, 745, 8)),
    _benchmark("amazon-computers", "goods bought together, by category", (13752, 245861, 767, 10)),
    _benchmark("coauthor-cs", "authors who wrote together, by field", (18333, 81894, 6805, 15)),
    _benchmark("coauthor-physics", "authors who wrote together, by field", (34493, 247962, 8415, 5)),
    _school("reed98", "Reed College", (962, 18812, 745, 2)),
    _school("johnshopkins55", "Johns Hopkins", (5180, 186586, 2406, 2)),
    _school("cornell5", "Cornell", (18660, 790777, 4735, 2)),
    _school("amherst41", "Amherst", (2235, 90954, 1193, 2)),
    _school("penn94", "Penn", (41554, 1362229, 4814, 2)),
    _graph(
        "deezer-europe",
        "friends on a music service, by gender",
        "datasets.deezer:deezer_europe",
        (28281, 92752, 31241, 2),
        protocols=("50/25/25",),
    ),
    _table("digits", "handwritten digits, 8 × 8", (1797, 64, 10)),
    _table("wine", "wines, by cultivar", (178, 13, 3)),
    _table("breast-cancer", "tumours, malignant or benign", (569, 30, 2)),
    _table("iris", "irises, by species", (150, 4, 3)),
    _graph(
        "karate",
        "Zachary's karate club, by faction",
        "datasets.embedded:karate",
        (34, 78, 34, 2),
        protocols=("one-a-side", "random"),
        licence="published by W. Zachary, 1977",
    ),
    _generated("sbm", "stochastic block model of any size"),
    _generated("two-moons", "two half circles that reach into each other", features=2, outputs=2),
    _generated("heat", "a known diffusion on a known graph", "mse"),
    _generated("random-graph", "random graph of any size, to measure cost on"),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}
