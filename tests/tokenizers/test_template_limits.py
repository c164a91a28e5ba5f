"""Chat templates that would take all time or memory end with an error instead (CVE-2026-115918 and its kind)."""

from __future__ import annotations

import tracemalloc

import pytest

from octavo.errors import InvalidRequestError
from octavo.tokenizers import template_budget
from octavo.tokenizers.chat_template import ChatOptions, render_chat
from tests.tokenizers.vocabularies import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
USER = {"role": "user", "content": "Hi"}
MAX_MEMORY_BYTES = 400 * 2**20


def render(template, messages=(USER,)):
    return render_chat(TOKENIZER, list(messages), ChatOptions(chat_template=template))


ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}x{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for x in [1,2] recursive %}{% if loop.depth < 40 %}{{ loop([1,2]) }}{% endif %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "{% for i in range(99999) %}{{ range(99999)|map('int')|sum }}{% endfor %}",
    "{% set y = 'a b ' * 1000000 %}{% for i in range(99999) %}{{ y|wordcount }}{% endfor %}",
    "{% set y = 'a b ' * 1000000 %}{% for i in range(99999) %}{% set x = y|striptags|length %}{% endfor %}",
    "{% set y = 'ab' * 1000000 %}{% for i in range(99999) %}{{ y.count('bb') }}{% endfor %}",
]
DOUBLING = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
GREEDY = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'a'*10**9 }}",
    "{{ 10**9*'a' }}",
    "{{ [1]*10**9 }}",
    "{{ 'a'|center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a'.zfill(1000000000) }}",
    DOUBLING.replace("STEP", "ns.x ~ ns.x"),
    DOUBLING.replace("STEP", "ns.x + ns.x"),
    DOUBLING.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
    DOUBLING.replace("STEP", "'{0}{0}'.format(ns.x)"),
    DOUBLING.replace("STEP", "'%s%s'|format(ns.x, ns.x)"),
    DOUBLING.replace("STEP", "[ns.x, ns.x]|join"),
    DOUBLING.replace("STEP", "''.join([ns.x, ns.x])"),
    DOUBLING.replace("STEP", "ns.x.replace('a', 'aa')"),
    DOUBLING.replace("STEP", "ns.x|tojson ~ ns.x|string"),
    "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLING.replace("STEP", "twice(ns.x)"),
    "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x %}{% filter replace('a', 'aa') %}{{ ns.x }}"
    "{% endfilter %}{% endset %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{0:{w}}'.format_map({'0': 1, 'w': 1000000000}) }}",
    "{{ ('a'*1000000).replace('a', 'b'*1000000) }}",
    "{{ ('a'*1000000).join(range(100000)|map('string')|list) }}",
    "{{ range(100000)|join('a'*1000000) }}",
    "{{ 10**1000000000 }}",
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "{{ 5|round(-1000000000) }}",
    "{{ [1]|batch(1000000000, 'x')|list }}",
    "{{ [1]|slice(1000000000)|list }}",
    "{{ [1]|tojson(indent=1000000000) }}",
    "{{ 'a\nb'|indent(1000000000) }}",
    "{{ ('ab'*1000000).expandtabs(100000) }}",
    "{{ ('a '*2000000)|wordwrap(1, true, 'b'*1000) }}",
    "{{ ([[1]]*100000)|sum(start=[])|length }}",
    "{% set ns = namespace(t=()) %}{% set y = 'a'*4000000 %}{% for i in range(99999) %}"
    "{% set ns.t = ns.t + (y[1:],) %}{% endfor %}",
    "{{ range(100000)|map('center', 4000000)|list|length }}",
    "{% for i in range(100000) %}" + "a" * 1000 + "{% endfor %}",
    "{% set x %}{% for i in range(100000) %}" + "a" * 1000 + "{% endfor %}{% endset %}",
    "{{ lipsum(n=1000000000) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ ('a'*1000).translate({97: 'b'*1000000}) }}",
    "{{ ('a'*1000000).join(range(100000)|map('string')) }}",
    "{{ ('%1000000000d'.encode()) % 1 }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ (['Aa'*2000000]*100000)|sort|length }}",
    "{{ (['Aa'*2000000]*100000)|groupby(0)|length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(300) %}{% set ns.x = [ns.x, 1, 2] %}{% endfor %}"
    "{{ ns.x|tojson(indent=1000) }}",
    "{{ (range(100000)|list)|tojson(separators=('x'*100000, ':')) }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(300) %}{% set ns.x = [ns.x] * 2 %}{% endfor %}{{ ns.x|pprint }}",
    "{{ (messages * 100000)|pprint }}",
    "{{ raise_exception('x' * 20000000) }}",
    "{{ '" + "(" * 3000 + "' }}{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ a }}" * 20000,
]


@pytest.fixture(autouse=True)
def short_time(monkeypatch):
    monkeypatch.setattr(template_budget, "MAX_CPU_S", 0.2)


@pytest.mark.parametrize("template", ENDLESS)
def test_endless_templates_are_stopped(template):
    with pytest.raises(InvalidRequestError, match=r"CPU time|characters"):
        render(template)


@pytest.mark.parametrize("template", GREEDY)
def test_greedy_templates_are_stopped_before_memory_is_taken(template, monkeypatch):
    monkeypatch.setattr(template_budget, "MAX_CPU_S", 1.0)  # tracing memory makes everything slow
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError):
            render(template)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_MEMORY_BYTES


def test_what_a_template_says_in_an_error_is_cut_short():
    with pytest.raises(InvalidRequestError) as caught:
        render("{{ raise_exception('x' * 100000) }}")
    assert len(str(caught.value)) < 1000


def test_deep_recursion_ends_as_an_error():
    with pytest.raises(InvalidRequestError, match=r"[Rr]ecursion"):
        render("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}")


def test_long_honest_conversations_pass():
    template = (
        "{% for m in messages %}{% set content = m.content | trim | replace('\n', '\n ') %}"
        "{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' }}{{ m | tojson }}{% endfor %}"
    )
    messages = [{"role": "user", "content": f"line {i}\n" * 200} for i in range(1000)]
    text = render(template, messages)
    assert text.count("<|im_start|>") == 1000 and len(text) > 3_000_000
