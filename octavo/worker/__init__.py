"""The device's side of a step: rows, inputs, forward, sampling. Knows no scheduler; meets it in types/step.py."""
