"""Model output -> reasoning, content and tool calls: one incremental engine, a declaration per format."""
