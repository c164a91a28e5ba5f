"""Anthropic's Messages API on the same engine: /v1/messages and /v1/messages/count_tokens."""
