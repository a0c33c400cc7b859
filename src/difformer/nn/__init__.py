"""Torch modules: the DIFFormer encoder, its layer, readouts, saving and loading."""

from difformer.graph import Graph
from difformer.nn.conv import DIFFormerConv
from difformer.nn.difformer import DIFFormer
from difformer.nn.pretrained import PretrainedError
from difformer.nn.protocol import GraphLevel, Model, readout
from difformer.sparse import SparseMatrix

__all__ = ["DIFFormer", "DIFFormerConv", "Graph", "GraphLevel", "Model", "PretrainedError", "SparseMatrix", "readout"]
