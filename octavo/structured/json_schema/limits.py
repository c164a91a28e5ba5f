"""Bounds on the work, the size and the depth of one preparation, so that no schema can hold up a server.

All are counts of steps, never of seconds: the same schema gives the same answer on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.structured.json_schema.errors import SchemaRefusedError

MAX_INPUT_NODES = 200_000  # JSON values in the schema as given
MAX_INPUT_DEPTH = 128  # nesting of the schema as given
MAX_IN_PLACE_DEPTH = 64  # allOf, anyOf, $ref ... within each other without going down to a property or an item
MAX_ALTERNATIVES = 1_000  # shapes per type that one schema object may come to
MAX_DEFINITIONS = 20_000  # distinct conjunctions of sub-schemas
MAX_BACKEND_DEPTH = 400  # llguidance descends one stack frame per level, through references too; 3,000 overflow it
MAX_STEPS = 500_000  # shapes made or compared


@dataclass(slots=True)
class Budget:
    """Steps left. `spend` raises SchemaRefusedError when none are."""

    steps_left: int = MAX_STEPS

    def spend(self, steps: int, keyword: str, pointer: str) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise SchemaRefusedError(
                "the combinations of sub-schemas are too many to prepare; simplify allOf/anyOf/oneOf", keyword, pointer
            )
