"""Array operations: one closed set (`interface.Ops`), several columns (reference, native), one chooser.

Knows arrays and shapes; knows nothing of requests, models or scheduling.
"""
