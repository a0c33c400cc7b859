# ruff: noqa: I001 (one import per module)
from difformer.distributed.graph_partition import partition as partition, quality as quality
from difformer.distributed.partition_folder import Partition as Partition, write_partition as write_partition
from difformer.distributed.process_group import Ranks as Ranks, join as join
from difformer.distributed.rank_runs import fit_seeds as fit_seeds, fit_sharded as fit_sharded
from difformer.distributed.rank_runs import resume_sharded as resume_sharded
from difformer.distributed.watch import RankLostError as RankLostError

def under_torchrun() -> bool: ...
def rank() -> int: ...
