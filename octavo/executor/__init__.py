"""How workers are reached: in this process or in others. Knows no scheduling and no arrays."""
