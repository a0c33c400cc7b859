"""The version of the package, read by the build and by ``difformer --version``."""

__version__ = "0.2.0"
