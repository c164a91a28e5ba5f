"""Tiny models and looks at processes, as for the engine's tests."""

from tests.engine.conftest import meeting_folder, own_children, tiny_llama  # noqa: F401
