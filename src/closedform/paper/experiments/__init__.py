"""Experiments that a person can run, one file each."""
