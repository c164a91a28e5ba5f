"""Processes that compute one model together: who each is, and how arrays pass between them.

Knows ranks and arrays; knows nothing of models, requests or who started the processes.
"""
