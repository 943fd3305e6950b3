"use strict";
// The page of a daemon: rates, latencies, metaslabs and status of its pools. It only reads:
//   watch.json        figures of all pools, whose differences are the rates (each 2 s)
//   map/POOL.json     metaslabs (each 5 s)
//   status/POOL.txt   what `zpool status` prints (each 5 s)
//   lab.json          pictures of stored experiments (once)

const EACH_MS = 2000, SLOW_EACH = 3, POINTS_MAX = 900, FRAMES_MAX = 400, COLUMNS_MAX = 300;
const LOWEST_BUCKET = 10, HIGHEST_BUCKET = 35;
const CIVIDIS = [[0,34,78],[0,47,110],[26,57,111],[47,67,108],[63,77,107],[77,87,108],[91,98,111],
  [104,108,115],[117,119,119],[131,130,121],[146,141,119],[162,153,115],[178,166,109],
  [195,179,100],[213,193,87],[232,207,69],[254,232,56]];

const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const checked = (name) => document.querySelector(`input[name=${name}]:checked`).value;
const state = { pool: null, last: null, history: new Map(), frames: new Map(), charts: null, follow: true };

/** Colour of a part, 0 to 1: dark for 0. */
function cividis(part) {
  const at = Math.min(Math.max(part, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.min(Math.floor(at), CIVIDIS.length - 2), rest = at - low;
  const mix = CIVIDIS[low].map((value, i) => Math.round(value + (CIVIDIS[low + 1][i] - value) * rest));
  return `rgb(${mix.join(",")})`;
}

/** A number of bytes, for example 1.5M. */
function bytes(count) {
  const units = ["B", "K", "M", "G", "T", "P", "E"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return (count >= 100 || unit === 0 ? Math.round(count) : count.toPrecision(3)) + units[unit];
}

/** A time of 2^bucket nanoseconds. */
function time(bucket) {
  const ns = 2 ** bucket;
  if (ns < 1e6) return `${Math.round(ns / 1e3)} µs`;
  return ns < 1e9 ? `${Math.round(ns / 1e6)} ms` : `${Math.round(ns / 1e9)} s`;
}

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

/** Everything with latencies in a pool: name and figures by direction. */
function sources(pool) {
  return [...pool.datasets.map((d) => [`dataset ${d.name}`, d]), ...pool.leaves.map((l) => [`device ${l.name}`, l])];
}

/** Counts by bucket of what happened between two figures of one source. */
function difference(now, before) {
  const counts = new Array(HIGHEST_BUCKET + 1).fill(0);
  const add = (times, sign) => times.counts.forEach((count, i) => {
    const bucket = Math.min(Math.max(times.first + i, LOWEST_BUCKET), HIGHEST_BUCKET);
    counts[bucket] += sign * count;
  });
  add(now.times, 1);
  add(before.times, -1);
  return counts.map((count) => Math.max(count, 0));
}

function historyOf(name) {
  if (!state.history.has(name)) state.history.set(name, { at: [], rates: [[], [], [], []], latency: new Map() });
  return state.history.get(name);
}

/** Adds the rates and latencies since the last figures. */
function note(pool, before, seconds) {
  const history = historyOf(pool.name);
  const rate = (direction, key) => Math.max(pool.io[direction][key] - before.io[direction][key], 0) / seconds;
  const rates = [rate("read", "bytes"), rate("write", "bytes"), rate("read", "operations"), rate("write", "operations")];
  history.at.push(Date.now() / 1000);
  rates.forEach((value, i) => history.rates[i].push(value));
  if (history.at.length > POINTS_MAX) [history.at, ...history.rates].forEach((list) => list.shift());
  const old = new Map(sources(before));
  for (const [name, figures] of sources(pool)) {
    for (const direction of ["read", "write", "commit"]) {
      if (!figures[direction] || !old.get(name)?.[direction]) continue;
      const key = `${direction} ${name}`;
      if (!history.latency.has(key)) history.latency.set(key, []);
      const columns = history.latency.get(key);
      columns.push(difference(figures[direction], old.get(name)[direction]));
      if (columns.length > COLUMNS_MAX) columns.shift();
    }
  }
}

/** Prepares a canvas for drawing in its size on the screen. */
function surface(canvas, height) {
  const width = canvas.clientWidth || canvas.width, ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = css("--faint");
  return [context, width, height];
}

function drawLatency() {
  const [context, width, height] = surface($("latency"), 220);
  const key = `${checked("direction")} ${$("source").value}`;
  const columns = historyOf(state.pool).latency.get(key) || [];
  const left = 52, rows = HIGHEST_BUCKET - LOWEST_BUCKET + 1, cell = (height - 14) / rows;
  for (let bucket = LOWEST_BUCKET; bucket <= HIGHEST_BUCKET; bucket += 5) {
    context.fillText(time(bucket), 2, (HIGHEST_BUCKET - bucket + 1) * cell);
  }
  const all = columns.flat().filter((count) => count > 0).sort((a, b) => a - b);
  const most = all[Math.min(all.length - 1, Math.floor(all.length * 0.98))] || 1;
  const step = Math.max((width - left) / COLUMNS_MAX, 1);
  context.fillStyle = css("--ground");
  context.fillRect(left, 0, width - left, rows * cell);
  columns.forEach((counts, x) => {
    const at = width - (columns.length - x) * step;
    counts.forEach((count, bucket) => {
      if (count === 0) return;
      // One event is visible, and outliers do not hide the rest.
      context.fillStyle = cividis(0.25 + 0.75 * Math.sqrt(Math.min(count / most, 1)));
      context.fillRect(at, (HIGHEST_BUCKET - bucket) * cell, step + 0.5, cell + 0.5);
    });
  });
  const count = all.reduce((sum, value) => sum + value, 0);
  $("latency-note").textContent = count === 0 ? "Nothing since the page was opened."
    : `${count} since the page was opened. A column is ${EACH_MS / 1000} s; brighter is more, yellow ${most} or more.`;
}

function drawRates() {
  const history = historyOf(state.pool);
  if (!state.charts) {
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line") }, ticks: { stroke: css("--line") } };
    const chart = (id, title, format) => new uPlot({
      title, width: $(id).clientWidth, height: 170,
      scales: { y: { range: (u, low, high) => [0, Math.max(high, 1)] } },
      axes: [axis, { ...axis, size: 60, values: (u, values) => values.map(format) }],
      series: [{}, { label: "read", stroke: css("--mark"), width: 1.5, value: (u, v) => v == null ? "" : format(v) },
        { label: "written", stroke: css("--bad"), width: 1.5, value: (u, v) => v == null ? "" : format(v) }],
    }, [[], [], []], $(id));
    state.charts = [chart("bytes", "bytes per second", bytes), chart("operations", "I/Os per second", (v) => String(Math.round(v)))];
  }
  state.charts[0].setData([history.at, history.rates[0], history.rates[1]]);
  state.charts[1].setData([history.at, history.rates[2], history.rates[3]]);
}

/** The figure of a metaslab, 0 to 1; null if unknown. */
function figure(cell) {
  if (checked("figure") === "frag") return cell.frag === null ? null : cell.frag / 100;
  return cell.size === 0 ? null : 1 - cell.free / cell.size;
}

function paint(context, x, y, width, height, part) {
  context.fillStyle = part === null ? css("--line") : cividis(1 - part);
  context.fillRect(x, y, width, height);
}

function drawMaps() {
  const frames = state.frames.get(state.pool) || [];
  $("frame").max = Math.max(frames.length - 1, 0);
  if (state.follow) $("frame").value = $("frame").max;
  const frame = frames[$("frame").value];
  $("maps").replaceChildren();
  if (!frame) return;
  $("frame-txg").textContent = `${frame.txg} (${frames.length} seen)`;
  for (const vdev of frame.vdevs) {
    const count = vdev.cells.length, across = count <= 256 ? 16 : Math.ceil(Math.sqrt(count) / 8) * 8;
    const cell = Math.max(Math.min(Math.floor(320 / across), 20), 2);
    const canvas = element("canvas", "", { width: across * cell, height: Math.ceil(count / across) * cell });
    const context = canvas.getContext("2d");
    const gap = cell > 4 ? 1 : 0;
    vdev.cells.forEach((one, i) => paint(context, (i % across) * cell, Math.floor(i / across) * cell, cell - gap, cell - gap, figure(one)));
    const used = Math.round(100 * vdev.allocated / Math.max(vdev.size, 1));
    const told = (event) => {
      const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
      const column = Math.floor((event.clientX - box.left) * scale / cell), row = Math.floor((event.clientY - box.top) * scale / cell);
      const one = vdev.cells[row * across + column];
      canvas.title = one ? `metaslab ${one.id}: ${bytes(one.free)} of ${bytes(one.size)} free, fragmentation ${one.frag ?? "unknown"} %` : "";
    };
    canvas.addEventListener("mousemove", told);
    const drawn = element("figure", "");
    drawn.append(element("figcaption", `${vdev.name} (${vdev.class}): ${count} × ${bytes(2 ** vdev.ms_shift)}, ${used} % used`), canvas);
    $("maps").append(drawn);
  }
  drawStrip(frames);
}

function drawStrip(frames) {
  const [context, width, height] = surface($("strip"), 200);
  const rows = frames[frames.length - 1].vdevs.reduce((sum, vdev) => sum + vdev.cells.length, 0);
  const column = Math.max(width / FRAMES_MAX, 1), row = height / Math.max(rows, 1);
  frames.forEach((frame, x) => {
    let y = 0;
    for (const vdev of frame.vdevs) for (const one of vdev.cells) {
      paint(context, width - (frames.length - x) * column, y, column + 0.5, row + 0.5, figure(one));
      y += row;
    }
  });
}

function drawScale() {
  const context = $("scale").getContext("2d");
  context.clearRect(0, 0, 270, 34);
  for (let x = 0; x < 200; x += 1) { context.fillStyle = cividis(1 - x / 200); context.fillRect(20 + x, 2, 1, 10); }
  context.fillStyle = css("--faint");
  context.font = "11px system-ui, sans-serif";
  ["0 %", "50 %", "100 %"].forEach((text, i) => context.fillText(text, 12 + i * 98, 26));
}

function drawFacts(pool) {
  const part = 100 * pool.allocated / Math.max(pool.size, 1);
  const fact = (name, value) => { const made = element("span", `${name} `); made.append(element("b", value)); return made; };
  const full = element("div", "", { class: "full" });
  const bar = element("div", "");
  bar.style.width = `${part}%`;
  full.append(bar);
  $("facts").replaceChildren(fact("", pool.name), fact("state", pool.suspended ? "SUSPENDED" : pool.state),
    fact("size", bytes(pool.size)), fact("allocated", `${bytes(pool.allocated)} (${Math.round(part)} %)`),
    fact("fragmentation", pool.fragmentation === null ? "unknown" : `${pool.fragmentation} %`),
    fact("txg", String(pool.txg)), fact("changes in memory", bytes(pool.dirty)),
    fact("cache hits", `${Math.round(100 * pool.cache.hits / Math.max(pool.cache.hits + pool.cache.misses, 1))} %`), full);
}

function drawSources(pool) {
  const names = sources(pool).map(([name]) => name), list = $("source"), chosen = list.value;
  if (list.options.length === names.length && names.every((name, i) => list.options[i].value === name)) return;
  list.replaceChildren(...names.map((name) => element("option", name, { value: name })));
  if (names.includes(chosen)) list.value = chosen;
}

function drawPools(pools) {
  const names = pools.map((pool) => pool.name);
  if (!names.includes(state.pool)) { state.pool = names[0] ?? null; state.follow = true; }
  $("pools").replaceChildren(...names.map((name) => {
    const button = element("button", name, { "aria-pressed": String(name === state.pool) });
    button.addEventListener("click", () => { state.pool = name; state.follow = true; round = 0; look(); });
    return button;
  }));
  $("main").hidden = state.pool === null;
}

let round = 0, isLooking = false;

async function slowly(name) {
  const path = encodeURIComponent(name);
  $("status").textContent = await (await get(`status/${path}.txt`)).text();
  const frame = await (await get(`map/${path}.json`)).json();
  if (!state.frames.has(name)) state.frames.set(name, []);
  const frames = state.frames.get(name);
  if (frames.length === 0 || frames[frames.length - 1].txg !== frame.txg) frames.push(frame);
  if (frames.length > FRAMES_MAX) frames.shift();
}

async function look() {
  if (isLooking) return;
  isLooking = true;
  try {
    const now = await (await get("watch.json")).json();
    now.at = performance.now();
    if (state.last) for (const pool of now.pools) {
      const before = state.last.pools.find((other) => other.guid === pool.guid);
      if (before) note(pool, before, (now.at - state.last.at) / 1000);
    }
    state.last = now;
    drawPools(now.pools);
    const pool = now.pools.find((one) => one.name === state.pool);
    if (pool) {
      drawFacts(pool);
      drawSources(pool);
      drawRates();
      drawLatency();
      if (round % SLOW_EACH === 0) { await slowly(pool.name); drawMaps(); }
    }
    $("note").textContent = pool ? "" : "No pool is imported.";
    round += 1;
  } catch (error) {
    $("note").textContent = `No answer: ${error.message}`;
  } finally {
    isLooking = false;
  }
}

async function showLab() {
  const names = await (await get("lab.json")).json();
  $("lab").hidden = names.length === 0;
  $("reports").replaceChildren(...names.map((name) => element("img", "", { src: `lab/${encodeURIComponent(name)}.svg`, alt: `experiment ${name}` })));
}

$("frame").addEventListener("input", () => { state.follow = $("frame").value === $("frame").max; drawMaps(); });
document.querySelectorAll("input[name=figure]").forEach((input) => input.addEventListener("change", drawMaps));
document.querySelectorAll("input[name=direction]").forEach((input) => input.addEventListener("change", drawLatency));
$("source").addEventListener("change", drawLatency);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  $("bytes").replaceChildren();
  $("operations").replaceChildren();
  state.charts = null;
  round = 0;
  drawScale();
  look();
});
drawScale();
showLab().catch(() => {});
look();
setInterval(look, EACH_MS);
