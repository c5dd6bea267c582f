"""openjev: typed decisions from a local model, at the command line."""

__version__ = "0.1.0"
