// The live view: speed, queue, every KV block as a cell, and how far each request is.

import { byId, element, errorText, request, setStatus } from "./shared.js";

const BUSY_MS = 500;
const IDLE_MS = 2000;
const HIDDEN_MS = 5000;
const HISTORY_S = 120;
const NAMES = ["free", "cached", "used", "shared"];

let isShown = false;
let previous = null; // the state before, for rates
let latest = null;
const history = []; // {time, generated, read}
let timer = 0;

export function startEngineView() {
  document.addEventListener("view", ({ detail }) => {
    isShown = detail === "engine";
    poll();
  });
  document.addEventListener("theme", draw);
  document.addEventListener("key", poll);
  document.addEventListener("visibilitychange", poll);
  addEventListener("resize", draw);
  byId("blocks").addEventListener("pointermove", describeBlock);
  byId("blocks").addEventListener("pointerleave", () => (byId("blocks-note").textContent = blocksNote()));
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  let wait = isShown ? IDLE_MS : HIDDEN_MS;
  try {
    const response = await request("octavo/state");
    if (!response.ok) throw new Error(await errorText(response));
    take(await response.json());
    if (isShown && (latest.num_running || latest.num_waiting)) wait = BUSY_MS;
  } catch (error) {
    setStatus("down", error instanceof TypeError ? "no server" : error.message);
  }
  clearTimeout(timer); // another call may have set one meanwhile
  timer = setTimeout(poll, wait);
}

function take(state) {
  previous = latest;
  latest = state;
  byId("model").textContent = state.model;
  document.title = `${state.model} · Octavo`;
  const load = state.num_running ? `${state.num_running} running` : "ready";
  setStatus(state.is_ready ? "ready" : "starting", state.is_ready ? load : "engine restarts");
  const rates = previous && state.time_s > previous.time_s ? ratesBetween(previous, state) : { generated: 0, read: 0 };
  history.push({ time: state.time_s, ...rates });
  while (history[0].time < state.time_s - HISTORY_S) history.shift();
  if (isShown) draw();
}

function ratesBetween(before, now) {
  const seconds = now.time_s - before.time_s;
  const rate = (name) => Math.max(0, now.totals[name] - before.totals[name]) / seconds;
  return { generated: rate("generation_tokens"), read: rate("prompt_tokens") };
}

function draw() {
  if (!latest || !isShown) return;
  drawTiles();
  drawSpeed();
  drawBlocks();
  drawRequests();
}

// -- numbers ------------------------------------------------------------------------------------------------------

const whole = (number) => Math.round(number).toLocaleString("en");
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

function drawTiles() {
  const { generated, read } = history[history.length - 1];
  const counts = blockCounts();
  const total = counts.reduce((sum, count) => sum + count, 0);
  const { prefix_cache_hits: hits, prefix_cache_queries: queries } = latest.totals;
  const tiles = [
    [whole(generated), "tokens/s generated"],
    [whole(read), "prompt tokens/s"],
    [`${latest.num_running} of ${latest.max_num_seqs}`, "running"],
    [latest.num_waiting, "waiting"],
    [total ? percent((counts[2] + counts[3]) / total) : "none", "KV cache in use"],
    [queries ? percent(hits / queries) : "none", "prefix cache hits"],
    [whole(latest.totals.generation_tokens), "tokens so far"],
  ];
  byId("tiles").replaceChildren(
    ...tiles.map(([value, label]) => {
      const tile = element("div", "tile");
      tile.append(element("b", "", String(value)), element("span", "", label));
      return tile;
    }),
  );
}

// -- canvases -----------------------------------------------------------------------------------------------------

function prepared(canvas, height) {
  const width = canvas.clientWidth;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Reading is much faster than generating, and comes in bursts: each has a scale of its own.
function drawSpeed() {
  const height = 230;
  const { context, width } = prepared(byId("speed"), height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  drawCurve(context, width, { name: "generated", tone: "used", top: 8, bottom: 122 });
  drawCurve(context, width, { name: "read", tone: "read", top: 146, bottom: height - 20 });
  context.fillStyle = colour("quiet");
  context.textAlign = "left";
  context.fillText("2 min ago", LEFT, height - 4);
  context.textAlign = "right";
  context.fillText("now", width - 2, height - 4);
}

const LEFT = 46; // pixels for the numbers of the scale

function drawCurve(context, width, { name, tone, top, bottom }) {
  const limit = niceLimit(Math.max(10, ...history.map((point) => point[name])));
  const x = (time) => LEFT + (width - LEFT) * (1 - (latest.time_s - time) / HISTORY_S);
  const y = (rate) => bottom - (bottom - top) * (rate / limit);
  context.fillStyle = colour("quiet");
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const rate of [0, limit]) {
    context.fillText(whole(rate), LEFT - 8, y(rate) + 4);
    context.beginPath();
    context.moveTo(LEFT, y(rate) + 0.5);
    context.lineTo(width, y(rate) + 0.5);
    context.stroke();
  }
  context.beginPath();
  history.forEach((point, i) => context[i ? "lineTo" : "moveTo"](x(point.time), y(point[name])));
  context.strokeStyle = colour(tone);
  context.lineWidth = 2;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(x(latest.time_s), bottom);
  context.lineTo(x(history[0].time), bottom);
  context.fillStyle = colour(tone);
  context.globalAlpha = 0.13;
  context.fill();
  context.globalAlpha = 1;
}

function niceLimit(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= value);
}

let blocks = { text: "", states: new Uint8Array() }; // decoded once per snapshot
let grid = { columns: 1, size: 1, perCell: 1 };

function blockStates() {
  const text = latest.blocks ?? "";
  if (blocks.text !== text) blocks = { text, states: Uint8Array.from(atob(text), (char) => char.charCodeAt(0)) };
  return blocks.states;
}

function blockCounts() {
  const counts = [0, 0, 0, 0];
  for (const state of blockStates()) if (state < 4) counts[state] += 1;
  return counts;
}

// Cells are as large as fits; a cache of very many blocks shows several a cell, coloured by the busiest.
function drawBlocks() {
  const states = blockStates();
  const canvas = byId("blocks");
  const width = canvas.clientWidth;
  const area = width * 420;
  const perCell = Math.max(1, Math.ceil(states.length / (area / 25)));
  const numCells = Math.ceil(states.length / perCell);
  const size = Math.max(5, Math.min(18, Math.floor(Math.sqrt(area / Math.max(numCells, 1)))));
  const columns = Math.max(1, Math.floor(width / size));
  grid = { columns, size, perCell };
  const { context } = prepared(canvas, Math.max(size, Math.ceil(numCells / columns) * size));
  const tones = NAMES.map(colour);
  const gap = size > 7 ? 2 : 1;
  for (let cell = 0; cell < numCells; cell += 1) {
    let state = 0;
    for (let i = cell * perCell; i < Math.min(states.length, (cell + 1) * perCell); i += 1) {
      if (states[i] < 4 && states[i] > state) state = states[i];
    }
    context.fillStyle = tones[state];
    context.beginPath();
    context.roundRect((cell % columns) * size, Math.floor(cell / columns) * size, size - gap, size - gap, size / 6);
    context.fill();
  }
  const counts = blockCounts();
  counts.forEach((count, state) => (byId(`count-${state}`).textContent = whole(count)));
  byId("blocks-title").textContent = `KV cache: ${whole(states.length)} blocks of ${latest.block_size} tokens`;
  const shown = counts.map((count, state) => `${count} ${NAMES[state]}`).join(", ");
  canvas.setAttribute("aria-label", `Blocks of the KV cache: ${shown}`);
  if (!canvas.matches(":hover")) byId("blocks-note").textContent = blocksNote();
}

function blocksNote() {
  if (!latest?.blocks) return "The engine does not answer now.";
  return grid.perCell > 1 ? `Each cell stands for ${grid.perCell} blocks.` : "Each cell is a block.";
}

function describeBlock(event) {
  const column = Math.floor(event.offsetX / grid.size);
  const first = (Math.floor(event.offsetY / grid.size) * grid.columns + column) * grid.perCell;
  const state = blockStates()[first];
  if (state === undefined || column >= grid.columns) return;
  const last = Math.min(first + grid.perCell, blockStates().length) - 1;
  const name = NAMES[state] ?? "the null block: it stands for keys that nobody needs";
  byId("blocks-note").textContent = first === last ? `Block ${first}: ${name}` : `Blocks ${first} to ${last}`;
}

// -- requests -----------------------------------------------------------------------------------------------------

function drawRequests() {
  byId("requests").replaceChildren(...latest.requests.map(requestRow));
  const others = latest.num_running + latest.num_waiting - latest.requests.length;
  const nobody = "Nothing is running. Ask something in the playground, or send a request to the API.";
  byId("requests-note").textContent = latest.requests.length ? (others > 0 ? `and ${others} more` : "") : nobody;
}

function requestRow(one) {
  const row = element("tr");
  const name = element("td", "", one.id);
  name.title = one.id;
  row.append(name, element("td", "", one.is_running ? "running" : "waiting"));
  const read = Math.min(one.num_computed_tokens, one.num_prompt_tokens);
  row.append(meter("prompt", read, one.num_prompt_tokens), meter("", one.num_output_tokens, one.max_output_tokens));
  return row;
}

function meter(className, value, max) {
  const cell = element("td", "", `${value} of ${max}`);
  const bar = Object.assign(element("progress", className), { value, max: Math.max(1, max) });
  bar.setAttribute("aria-label", `${value} of ${max}`);
  cell.append(bar);
  return cell;
}
