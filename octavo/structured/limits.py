"""How much a grammar may cost: in time and memory to compile, and at each token."""

from __future__ import annotations

import msgspec


class GrammarLimits(msgspec.Struct, frozen=True):
    """Limits of one engine; what exceeds them is refused, or ends its own request.

    compile_timeout_s: processor time for a grammar's first compilation, in a process of its own
    compiler_bytes: memory that this process may take beyond what it has when it is ready
    max_grammar_size: symbols in all productions
    compile_fuel, step_fuel: work on regular expressions, at compilation and for a mask; about 50 and 14 a microsecond
    step_items: parser items for a mask
    max_row_items, max_schema_row_items: parser items at one place of a text, of a grammar and of a JSON schema; an
        ambiguous grammar costs their square at every token, a schema with many optional properties only needs many
    max_lexer_states: of one request, 1 to 2 KB each
    """

    compile_timeout_s: float = 5.0
    compiler_bytes: int = 2 * 2**30
    max_grammar_size: int = 500_000
    compile_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 50_000
    max_row_items: int = 500
    max_schema_row_items: int = 2500
    max_lexer_states: int = 20_000
