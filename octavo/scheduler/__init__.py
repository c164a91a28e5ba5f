"""Who computes how many tokens in the next step. Pure bookkeeping: token ids and block ids, never arrays or text."""
