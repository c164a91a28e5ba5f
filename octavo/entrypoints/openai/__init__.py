"""The HTTP server: OpenAI's API and vLLM's additions to it, on one engine."""
