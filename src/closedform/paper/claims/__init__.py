"""The sentences of the paper as checks on results."""
