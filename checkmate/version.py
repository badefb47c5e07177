"""The version of the package; in a file of its own, so that everything can import it."""

__version__ = "0.1.0"
