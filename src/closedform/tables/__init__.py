"""From a file with a table to a trained model and back: `closedform train` and `closedform predict`."""
