"""Exact full-graph training over `torch.distributed`: rows on ranks, parameters on all of them.

`torchrun --nproc-per-node P -m difformer fit FOLDER` trains on a folder that `difformer partition` made. From Python,
in a program that torchrun starts:

    from difformer.distributed import Partition, fit_sharded, join

    with join() as ranks:
        summary, sent = fit_sharded(Partition.open("parts"), config, ranks=ranks, seeds=[0], out="run")

Nothing is imported before it is asked for: the command line looks at `environment` alone.
"""

from __future__ import annotations

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "partition_folder": "Partition write_partition",
        "watch": "RankLostError",
        "process_group": "Ranks join",
        "rank_runs": "fit_seeds fit_sharded resume_sharded",
        "graph_partition": "partition quality",
    },
)
