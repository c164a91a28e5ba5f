"""The parts that models are made of: each holds its packed weights and calls ops; none does arithmetic of its own."""
