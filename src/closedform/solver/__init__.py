"""Loss x rule x route: everything that computes an update of a last layer, and nothing else does."""
