"""Guessing tokens ahead, cheaply, so that one forward of the model can yield several.

Proposers guess; `verify` samples every position as if there were no guesses and keeps those that agree; `DraftLengths`
decides how many guesses are worth their computation. Knows rows and token ids; never the scheduler.
"""
