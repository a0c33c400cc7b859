"""Readers of the data sets, one file per family; `difformer.data.load` calls them."""
