// The playground: chats and completions as streams, each token with what else could have stood there.

import { byId, element, errorText, request } from "./shared.js";

const NUM_CANDIDATES = 6;
const IDEAS = {
  chat: ["What is the capital of France?", "Explain a hash table in two sentences.", "Write a haiku about paper."],
  completion: ["Once upon a time", "def fibonacci(n):", "The opposite of hot is"],
};
const PARAMETERS = [
  // the API's own default is 1, with which small models talk nonsense; an emptied field asks for the model's default
  { name: "temperature", label: "Temperature", step: 0.1, min: 0, max: 2, value: 0.5 },
  { name: "max_tokens", label: "Max tokens", step: 1, min: 1, value: 256 },
  { name: "top_p", label: "Top p", step: 0.05, min: 0.05, max: 1 },
  { name: "top_k", label: "Top k", step: 1, min: 0 },
  { name: "min_p", label: "Min p", step: 0.01, min: 0, max: 1 },
  { name: "seed", label: "Seed", step: 1 },
  { name: "presence_penalty", label: "Presence penalty", step: 0.1, min: -2, max: 2 },
  { name: "frequency_penalty", label: "Frequency penalty", step: 0.1, min: -2, max: 2 },
  { name: "repetition_penalty", label: "Repetition penalty", step: 0.05, min: 0.05 },
  { name: "stop", label: "Stop at", kind: "text" },
];

let messages = []; // of the chat so far
let running = null; // AbortController of the request that streams

export function startPlayground() {
  makeFields();
  showIdeas();
  for (const input of document.querySelectorAll("input[name=mode]")) input.addEventListener("change", changeMode);
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) running.abort();
    else send();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!running) send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) running.abort();
  });
  byId("clear").addEventListener("click", clear);
  byId("tint").addEventListener("change", tintAll);
  startTips();
}

// -- form ---------------------------------------------------------------------------------------------------------

const mode = () => document.querySelector("input[name=mode]:checked").value;

function makeFields() {
  for (const { name, label, kind = "number", value = "", ...limits } of PARAMETERS) {
    const field = element("label", "field", label);
    const input = Object.assign(element("input"), { id: `p-${name}`, type: kind, value, placeholder: "default" });
    for (const [key, limit] of Object.entries(limits)) input[key] = limit;
    field.append(input);
    byId("parameters").append(field);
  }
}

function parameters() {
  const given = {};
  for (const { name, kind } of PARAMETERS) {
    const text = byId(`p-${name}`).value;
    if (text === "") continue;
    given[name] = kind === "text" ? text : Number(text);
  }
  return given;
}

function showIdeas() {
  byId("ideas").replaceChildren(
    ...IDEAS[mode()].map((text) => {
      const button = element("button", "", text);
      button.type = "button";
      button.addEventListener("click", () => {
        byId("prompt").value = text;
        byId("prompt").focus();
      });
      return button;
    }),
  );
}

function changeMode() {
  const isChat = mode() === "chat";
  byId("system-field").hidden = !isChat;
  byId("prompt").placeholder = isChat ? "Your message" : "A text to be continued";
  byId("send").textContent = isChat ? "Send" : "Continue";
  clear();
  showIdeas();
}

function clear() {
  if (running) running.abort();
  messages = [];
  byId("conversation").replaceChildren();
  byId("empty").hidden = false;
  byId("prompt").focus();
}

// -- a request ----------------------------------------------------------------------------------------------------

async function send() {
  const prompt = byId("prompt").value;
  if (!prompt.trim()) return;
  const isChat = mode() === "chat";
  byId("empty").hidden = true;
  byId("prompt").value = "";
  if (isChat) {
    messages.push({ role: "user", content: prompt });
    addTurn("user", "You").append(prompt);
  }
  const answer = addTurn(isChat ? "answer" : "answer completion", isChat ? "Model" : "");
  if (!isChat) answer.append(element("span", "given", prompt));
  setRunning(new AbortController());
  const signal = running.signal;
  answer.classList.add("caret");
  const facts = { started: performance.now(), tokens: 0 };
  try {
    const text = await streamInto(answer, isChat ? chatRequest() : completionRequest(prompt), facts, signal);
    if (isChat) messages.push({ role: "assistant", content: text });
  } catch (error) {
    if (isChat) keepWhatWasSaid(answer);
    const message = signal.aborted ? "stopped" : error.message;
    answer.append(element("span", signal.aborted ? "end" : "error", message));
  } finally {
    answer.classList.remove("caret");
    setRunning(null);
    showFacts(facts);
  }
}

// After an error or a stop the conversation goes on with what there is.
function keepWhatWasSaid(answer) {
  const text = answer.textContent;
  if (text) messages.push({ role: "assistant", content: text });
  else messages.pop();
}

function chatRequest() {
  const system = byId("system").value.trim();
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  const body = { messages: all, logprobs: true, top_logprobs: NUM_CANDIDATES };
  return { path: "v1/chat/completions", body };
}

function completionRequest(prompt) {
  return { path: "v1/completions", body: { prompt, logprobs: NUM_CANDIDATES } };
}

async function streamInto(answer, { path, body }, facts, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, ...parameters(), stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await errorText(response));
  let text = "";
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) facts.usage = event.usage;
    for (const choice of event.choices ?? []) {
      const piece = choice.delta ? (choice.delta.content ?? "") : choice.text;
      const tokens = choice.logprobs ? tokensOf(choice.logprobs) : [];
      facts.first ??= piece || tokens.length ? performance.now() : undefined;
      facts.tokens += tokens.length;
      text += piece;
      show(answer, piece, tokens);
      if (choice.finish_reason) {
        facts.reason = choice.finish_reason;
        if (choice.finish_reason === "length") answer.append(element("span", "end", "cut at max tokens"));
      }
    }
  }
  return text;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      if (piece.startsWith("data: ") && piece !== "data: [DONE]") yield JSON.parse(piece.slice(6));
    }
  }
}

// -- tokens -------------------------------------------------------------------------------------------------------

// Both shapes of OpenAI's logprobs as [{text, logprob, candidates: [[text, logprob]]}].
function tokensOf(logprobs) {
  if (logprobs.content) {
    return logprobs.content.map((entry) => ({
      text: entry.token,
      logprob: entry.logprob,
      candidates: entry.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return logprobs.tokens.map((text, i) => ({
    text,
    logprob: logprobs.token_logprobs[i],
    candidates: Object.entries(logprobs.top_logprobs[i] ?? {}),
  }));
}

const details = new WeakMap(); // span -> token

// The text is what counts; tokens divide it where they agree with it: held-back text makes them run ahead, and the token that ends an
// answer shows none.
function show(answer, piece, tokens) {
  const scroller = document.querySelector(".scroll");
  const follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
  let rest = piece;
  const append = (text, token) => {
    const span = element("span", "token", text);
    if (token) details.set(span, token);
    tint(span);
    answer.append(span);
    rest = rest.slice(text.length);
  };
  for (const token of tokens) {
    if (token.text && rest.startsWith(token.text)) append(token.text, token);
  }
  if (rest) append(rest, tokens[tokens.length - 1]);
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}

function tint(span) {
  const token = details.get(span);
  if (!token || token.logprob === null) return;
  const doubt = 1 - Math.exp(token.logprob);
  span.style.backgroundColor = byId("tint").checked && doubt > 0.05 ? `rgba(var(--tint), ${0.45 * doubt})` : "";
}

function tintAll() {
  document.querySelectorAll(".token").forEach(tint);
}

// -- tips ---------------------------------------------------------------------------------------------------------

function startTips() {
  const conversation = byId("conversation");
  conversation.addEventListener("pointerover", (event) => choose(event.target.closest(".token")));
  conversation.addEventListener("pointerleave", () => choose(null));
  conversation.addEventListener("focusin", (event) => choose(event.target.querySelector?.(".token") ?? null));
  conversation.addEventListener("focusout", () => choose(null));
  conversation.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const chosen = conversation.querySelector(".chosen");
    if (!step || !chosen) return;
    event.preventDefault();
    const all = [...chosen.parentNode.querySelectorAll(".token")];
    const next = all[all.indexOf(chosen) + step];
    if (next) choose(next);
  });
  document.querySelector(".scroll").addEventListener("scroll", () => choose(null));
  document.addEventListener("view", () => choose(null));
}

function choose(span) {
  const tip = byId("tip");
  document.querySelector(".token.chosen")?.classList.remove("chosen");
  const token = span && details.get(span);
  tip.hidden = !token;
  if (!token) return;
  span.classList.add("chosen");
  const candidates = token.candidates.some(([text]) => text === token.text)
    ? token.candidates
    : [...token.candidates, [token.text, token.logprob]];
  tip.replaceChildren(...candidates.map(([text, logprob]) => candidateRow(text, logprob, text === token.text)));
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - size.width - 8))}px`;
  const below = box.bottom + 8;
  tip.style.top = `${below + size.height < innerHeight ? below : box.top - size.height - 8}px`;
}

function candidateRow(text, logprob, isOwn) {
  const row = element("div", isOwn ? "candidate own" : "candidate");
  const probability = Math.exp(logprob ?? 0);
  const name = element("code", "", text.replaceAll("\n", "⏎").replaceAll(" ", "·") || "(part of a character)");
  const share = element("div", "bar-of");
  share.style.width = `${Math.max(1, probability * 100)}%`;
  row.append(name, element("span", "", `${(probability * 100).toFixed(1)} %`), share);
  return row;
}

// -- around -------------------------------------------------------------------------------------------------------

function addTurn(className, who) {
  const turn = element("div", `turn ${className}`);
  if (who) turn.append(element("div", "who", who));
  const body = element("div", "body");
  if (className.startsWith("answer")) {
    body.tabIndex = 0;
    body.setAttribute("role", "group");
    body.setAttribute("aria-label", "Answer; arrow keys go through its tokens");
  }
  turn.append(body);
  byId("conversation").append(turn);
  body.scrollIntoView({ block: "end" });
  return body;
}

function setRunning(controller) {
  running = controller;
  const button = byId("send");
  button.classList.toggle("stop", Boolean(controller));
  button.textContent = controller ? "Stop" : mode() === "chat" ? "Send" : "Continue";
}

function showFacts({ started, first, usage, reason, tokens }) {
  const now = performance.now();
  const count = usage?.completion_tokens ?? tokens;
  const rows = [
    ["first token", first ? `${Math.round(first - started)} ms` : "none"],
    ["speed", first && count > 1 ? `${((count - 1) / ((now - first) / 1000)).toFixed(1)} tokens/s` : "none"],
    ["prompt", usage ? `${usage.prompt_tokens} tokens` : "unknown"],
    ["from the cache", usage?.prompt_tokens_details ? `${usage.prompt_tokens_details.cached_tokens} tokens` : "unknown"],
    ["answer", `${count} tokens`],
    ["ended by", reason ?? "you"],
  ];
  byId("facts").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}
