"""Grammars that a request's text must follow: from what users write to masks over the vocabulary.

Front end: `checker` has every new grammar compiled by a process that may crash or hang (`compiler_pool`,
`compiler_process`), which turns it into a GrammarSpec (`source`). Core: `manager` compiles specs that have passed,
keeps each request's place in its grammar and fills masks. Knows token ids and bytes; no text states, no scheduler.
"""
