"""How workers are reached: in this process, later also in others. Knows no scheduling and no arrays."""
