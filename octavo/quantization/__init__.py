"""Weights of fewer bits: checkpoints that come quantised, and quantising others while they load."""
