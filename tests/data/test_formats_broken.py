"""Every reader of published files, on files that are damaged."""

import numpy as np
import pytest
import test_formats_graphs as graphs
import test_formats_others as others
import test_formats_particles as particles
import test_formats_series_images as series_images
from published_files import tarred, write

from difformer.data import load, load_images


class TestBrokenFiles:
    """A byte changed, lost or added anywhere: the data set still loads, or the error is about data."""

    # MATLAB files are left out: scipy reads them in C, and what it makes of a changed byte may end the process.
    FILES = ("proteins", "wikimath", "stl10", "cifar10", "actstrack", "deezer")

    def write(self, kind, folder):
        if kind == "proteins":
            graphs.TestProteins().put(folder, graphs.TestProteins().members()[0], "zip")
            return "ogbn-proteins", "ogbn_proteins/proteins.zip"
        if kind == "wikimath":
            series_images.TestSeries().wikimath(folder)
            return "wikimath", "temporal/wikivital_mathematics.json"
        if kind == "stl10":
            inside = {f"stl10_binary/{name}": data for name, data in series_images.TestImages().stl10()[0].items()}
            write(folder / "stl10" / "stl10_binary.tar.gz", tarred(inside))
            return "stl10", "stl10/stl10_binary.tar.gz"
        if kind == "cifar10":
            batches = {f"cifar-10-batches-bin/data_batch_{i}.bin": bytes(3073) for i in range(1, 6)}
            write(folder / "cifar10" / "cifar-10-binary.tar.gz", tarred(batches))
            return "cifar10", "cifar10/cifar-10-binary.tar.gz"
        if kind == "actstrack":
            particles.TestActsTrack().put(folder, "folder")
            return "actstrack", "actstrack/processed_2T/data_2T.pt"
        others.TestOtherPublishedFiles().test_deezer(None, folder)
        return "deezer-europe", "deezer_europe/deezer_europe.zip"

    @pytest.mark.parametrize("kind", FILES)
    @pytest.mark.filterwarnings("ignore")
    def test_noise(self, cache, tmp_path, monkeypatch, kind):
        monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
        name, place = self.write(kind, tmp_path)
        read = load_images if name in ("stl10", "cifar10") else load
        read(name, tmp_path)
        good = (tmp_path / place).read_bytes()
        rng = np.random.default_rng(1)
        refused = 0
        for how in ("cut", "change", "insert") * 8:
            at = int(rng.integers(len(good)))
            noise = bytes(rng.integers(0, 256, 4, dtype=np.uint8))
            tail = {"cut": b"", "change": noise + good[at + 4 :], "insert": noise + good[at:]}[how]
            (tmp_path / place).write_bytes(good[:at] + tail)
            try:
                read(name, tmp_path)
            except ValueError:  # DataError, or a task that contradicts itself
                refused += 1
        assert refused >= 8  # every file that was cut, at the least
