"""Exact full-graph training over `torch.distributed`: rows on ranks, parameters on all of them.

`torchrun --nproc-per-node P -m difformer fit FOLDER` trains on a folder that `difformer partition` made.
"""
