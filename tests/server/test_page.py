"""The page at / and what it is fed with: files that load nothing from elsewhere, and the engine's true state."""

from __future__ import annotations

import base64
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.openai.page import STATIC_FILES
from octavo.types.stats import BlockState
from tests.server.chromium import Browser, find_chromium
from tests.server.conftest import Engine, Server, wait_until

FOREVER = {"prompt": "Hi", "max_tokens": 500, "ignore_eos": True}


class Links(HTMLParser):
    """All that a page refers to, its ids, and scripts or styles in the text itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.references += [value for name in ("src", "href") if (value := given.get(name))]
        self.ids += [value for value in (given.get("id"),) if value]
        self.labels += [value for name in ("for", "aria-controls", "aria-labelledby") if (value := given.get(name))]
        if tag == "style" or (tag == "script" and "src" not in given) or "style" in given:
            self.inline.append(tag)
        self.inline += [name for name in given if name.startswith("on")]


def blocks_of(state: dict[str, Any]) -> Counter[int]:
    return Counter(base64.b64decode(state["blocks"]))


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_page_refers_only_to_its_own_files_and_has_no_inline_code(tiny: Server):
    reply = tiny.get("/")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    page = Links(reply.body.decode())
    own = {f"static/{name}" for name in STATIC_FILES}
    assert set(page.references) <= own | {"./", "docs"} and not page.inline
    assert len(set(page.ids)) == len(page.ids) and set(page.labels) <= set(page.ids)


@pytest.mark.parametrize("name", STATIC_FILES)
def test_every_file_is_served_with_its_type_and_refers_to_nothing_elsewhere(tiny: Server, name: str):
    reply = tiny.get(f"/static/{name}")
    assert reply.status == 200 and reply.headers["content-type"].startswith(STATIC_FILES[name])
    text = reply.body.decode()
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}
    for module in re.findall(r'from "\./([^"]+)"', text):
        assert module in STATIC_FILES


def test_the_scripts_find_the_elements_that_they_name(tiny: Server):
    page = Links(tiny.get("/").body.decode())
    for name in ("page.js", "playground.js", "engine.js", "shared.js"):
        script = tiny.get(f"/static/{name}").body.decode()
        assert set(re.findall(r'byId\("([^"]+)"\)', script)) <= set(page.ids)


def test_the_policy_allows_nothing_from_elsewhere(tiny: Server):
    for path in ("/", "/static/page.js"):
        headers = tiny.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"


def test_other_files_are_not_served(tiny: Server):
    for name in ("index.html", "../page.py", "..%2fpage.py", "nothing.js"):
        assert tiny.get(f"/static/{name}").status == 404


def test_the_page_is_open_and_the_state_is_not(tiny_engine: Engine):
    server = tiny_engine.serve(api_key=["secret"])
    assert server.get("/").status == server.get("/static/page.js").status == 200
    assert server.get("/octavo/state").status == 401
    assert server.request("GET", "/octavo/state", headers={"Authorization": "Bearer secret"}).status == 200


# -- state -------------------------------------------------------------------------------------------------------------


def test_the_state_shows_requests_and_blocks_while_they_are_used(tiny: Server, tiny_engine: Engine):
    tiny.request("POST", "/reset_prefix_cache")
    before = tiny.get("/octavo/state").json
    seen: list[dict[str, Any]] = []

    def ask_until_seen() -> None:
        while not seen:
            tiny.complete(**FOREVER, n=2, temperature=1, seed=1)

    asking = threading.Thread(target=ask_until_seen)
    asking.start()

    def is_running() -> bool:
        state = tiny.get("/octavo/state").json
        if len(state["requests"]) == 2 and state["requests"][0]["num_output_tokens"] > 16:
            seen.append(state)
        return bool(seen)

    wait_until(is_running)
    asking.join(60)
    state = seen[0]
    assert state["num_running"] == 2 and state["is_ready"] and state["model"] == "tiny"
    (first, _) = state["requests"]
    assert first["is_running"] and first["num_prompt_tokens"] < first["num_computed_tokens"]
    assert 16 < first["num_output_tokens"] <= first["max_output_tokens"] == 500
    counts = blocks_of(state)
    assert sum(counts.values()) == tiny_engine.llm.num_blocks and counts[BlockState.NULL] == 1
    assert counts[BlockState.USED] + counts[BlockState.SHARED] >= 4
    wait_until(lambda: not tiny.get("/octavo/state").json["requests"])
    after = tiny.get("/octavo/state").json
    assert blocks_of(after)[BlockState.USED] == blocks_of(after)[BlockState.SHARED] == 0
    assert blocks_of(after)[BlockState.CACHED] > 4
    assert after["totals"]["generation_tokens"] - before["totals"]["generation_tokens"] >= 1000


def test_many_who_look_get_the_same_look(tiny: Server):
    states = []
    threads = [threading.Thread(target=lambda: states.append(tiny.get("/octavo/state"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {reply.status for reply in states} == {200} and len({reply.json["blocks"] for reply in states}) == 1


def test_the_state_is_told_while_the_engine_process_is_replaced(tiny_folder: Path):
    engine = Engine(model=str(tiny_folder), served_model_name="tiny", num_gpu_blocks_override=32)
    try:
        server = engine.serve()
        assert server.get("/octavo/state").json["is_ready"]
        process_id = engine.llm.engine_core.process_id
        os.kill(process_id, signal.SIGKILL)
        seen = []
        wait_until(lambda: seen.append(server.get("/octavo/state")) or not seen[-1].json["is_ready"])
        assert {reply.status for reply in seen} == {200} and seen[-1].json["blocks"] is None
        wait_until(lambda: server.get("/octavo/state").json["blocks"] is not None)
        assert engine.llm.engine_core.process_id != process_id
    finally:
        engine.close()


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("needs Chromium")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_a_chat_by_keyboard_shows_tokens_and_what_else_was_likely(real: Server, browser: Browser, tmp_path: Path):
    browser.open(real.url)
    browser.evaluate("document.getElementById('p-temperature').value = 0")
    browser.evaluate("document.getElementById('prompt').focus()")
    browser.type("What is the capital of France?")
    browser.press("Enter", 13, modifiers=2)
    browser.wait_for("document.querySelector('#facts')?.textContent.includes('stop')")
    answer = browser.evaluate("document.querySelector('.turn.answer .body').textContent")
    asked = real.chat("What is the capital of France?", temperature=0, max_tokens=256).json
    assert answer == asked["choices"][0]["message"]["content"]
    browser.evaluate("document.querySelector('.turn.answer .body').focus()")
    browser.press("ArrowRight", 39)
    rows = browser.evaluate("[...document.querySelectorAll('#tip .candidate')].map(row => row.textContent)")
    chosen = browser.evaluate("document.querySelector('.token.chosen').textContent")
    assert len(rows) >= 6 and any(row.startswith(chosen.replace(" ", "·")) for row in rows)
    browser.screenshot(tmp_path / "chat.png")
    assert not browser.problems


def test_the_live_view_draws_blocks_and_the_theme_follows(real: Server, browser: Browser):
    browser.open(f"{real.url}/#engine")
    browser.wait_for("document.getElementById('count-0').textContent !== ''")
    shown = browser.evaluate(
        "[0, 1, 2, 3].map(i => Number(document.getElementById(`count-${i}`).textContent.replace(',', '')))"
    )
    assert sum(shown) == real.state.engine.num_blocks - 1
    pixels = "document.getElementById('blocks').getContext('2d').getImageData(2, 2, 1, 1).data.join()"
    light = browser.evaluate(pixels)
    browser.evaluate("document.getElementById('theme-button').click()")
    assert browser.evaluate(pixels) != light
    assert browser.evaluate("document.getElementById('playground').hidden")
    assert not browser.problems


def test_a_failure_is_told_on_the_page(real: Server, browser: Browser):
    browser.open(real.url)
    browser.evaluate("document.getElementById('p-temperature').value = 3")
    browser.evaluate("document.getElementById('prompt').focus()")
    browser.type("Hi")
    browser.press("Enter", 13, modifiers=2)
    browser.wait_for("document.querySelector('.turn .error')?.textContent.includes('temperature')")
