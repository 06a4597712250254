"""The paper's data: loaders that find, check and cache the real thing, each with a small generated twin."""
