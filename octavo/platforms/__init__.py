"""Facts about the machine: memory and cores as this process may use them. Decides nothing."""
