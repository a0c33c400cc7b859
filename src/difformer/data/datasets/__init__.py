"""Readers of the data sets, one file a family; `difformer.data.load` is the door to all of them."""
