'use strict';

// Page of a profile. `selection` is the range of slices selected in the heat map; `path` leads from
// the root to the frame that is enlarged to the full width of the flame graph.

const capture = JSON.parse(document.getElementById('capture').textContent);
const { kind, names, stacks, slices, slice_ms: sliceMs } = capture;
const find = id => document.getElementById(id);
const ROW_MS = 1000;
const ROW = 17, LEFT = 52, WIDTH_MIN = 0.4, LETTER = 6.7, LISTED = 15, PASSES_ON = 0.98;
let selection = null;
let path = [];
let pattern = null;

// Formatting.

const escape = text => String(text).replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' }[c]));
const scaled = (value, units) => {
  const [size, unit] = units.find(([size]) => value >= size) || units[units.length - 1];
  return `${(value / size).toFixed(1)} ${unit}`;
};
const amount = {
  cpu: value => `${value.toLocaleString('en-US')} samples`,
  alloc: value => scaled(value, [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'bytes']]),
  wait: value => scaled(value, [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]),
}[kind];
const percent = share => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;
const seconds = ms => `${(ms / 1000).toFixed(ms % 1000 ? 2 : 0)} s`;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One hue per crate, as in the SVG file.
function color(name) {
  if (name.endsWith('_[k]') || name === '[kernel]') return 'hsl(8 42% 74%)';
  if (/^[[(]/.test(name) || !name.includes('::')) return 'hsl(50 8% 82%)';
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name.replace(/^[<&[]+/, '').split('::')[0])) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return `hsl(${24 + hash % 230} 58% ${72 + (hash >>> 16) % 8}%)`;
}

// Heat map.

const perRow = Math.max(1, Math.floor(ROW_MS / sliceMs));
const rowCount = Math.max(1, Math.ceil(slices / perRow));
const rowHeight = Math.min(18, Math.max(3, Math.floor(480 / rowCount)));
const bySlice = new Array(slices).fill(0);
for (const stack of stacks) for (const [slice, weight] of stack.weights) bySlice[slice] += weight;
const mostInSlice = Math.max(...bySlice, 1);
const total = bySlice.reduce((a, b) => a + b, 0);

const cellWidth = width => (width - LEFT) / perRow;

function drawHeat() {
  const canvas = document.querySelector('#heat canvas');
  const [width, height] = [canvas.parentElement.clientWidth, rowCount * rowHeight + 20];
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height, canvas.style.height] = [width * ratio, height * ratio, `${height}px`];
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  const cell = cellWidth(width), gap = rowHeight > 6 ? 1 : 0;
  const [heat, ground, ink, mark] = ['--heat', '--grid', '--ink-3', '--mark'].map(style);
  pen.font = '12px system-ui, sans-serif';
  for (let slice = 0; slice < slices; slice++) {
    const x = LEFT + (slice % perRow) * cell, y = Math.floor(slice / perRow) * rowHeight;
    const box = [x, y, cell - gap, rowHeight - gap];
    pen.fillStyle = ground;
    pen.fillRect(...box);
    pen.globalAlpha = bySlice[slice] ? 0.08 + 0.92 * bySlice[slice] / mostInSlice : 0;
    pen.fillStyle = heat;
    pen.fillRect(...box);
    pen.globalAlpha = 1;
    if (selection && slice >= selection[0] && slice <= selection[1]) {
      pen.strokeStyle = mark;
      pen.lineWidth = 1.5;
      pen.strokeRect(box[0] + 0.5, box[1] + 0.5, box[2] - 1, box[3] - 1);
    }
  }
  pen.fillStyle = ink;
  pen.textAlign = 'right';
  const every = Math.ceil(24 / rowHeight);
  for (let row = 0; row < rowCount; row += every) pen.fillText(seconds(row * perRow * sliceMs), LEFT - 8, row * rowHeight + Math.min(12, rowHeight));
  pen.textAlign = 'left';
  const ticks = perRow % 4 ? [0] : [0, 1, 2, 3].map(part => part * perRow / 4);
  for (const tick of ticks) pen.fillText(`+${tick * sliceMs} ms`, LEFT + tick * cell, rowCount * rowHeight + 14);
}

function sliceAt(event) {
  const box = event.target.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - LEFT) / cellWidth(box.width));
  const row = Math.floor((event.clientY - box.top) / rowHeight);
  const slice = Math.min(Math.max(row, 0), rowCount - 1) * perRow + Math.min(Math.max(column, 0), perRow - 1);
  return Math.min(slice, slices - 1);
}

function listenToHeat() {
  const [canvas, tip] = document.querySelector('#heat').children;
  let from = null;
  canvas.addEventListener('pointerdown', event => { from = sliceAt(event); canvas.setPointerCapture(event.pointerId); choose([from, from], false); });
  canvas.addEventListener('pointermove', event => {
    const slice = sliceAt(event);
    if (from !== null) choose([Math.min(from, slice), Math.max(from, slice)], false);
    show(tip, event, `<b>${seconds(slice * sliceMs)} to ${seconds((slice + 1) * sliceMs)}</b>${amount(bySlice[slice])}`);
  });
  canvas.addEventListener('pointerup', () => { from = null; choose(selection, true); });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  find('whole').addEventListener('click', () => choose(null, true));
  document.addEventListener('keydown', event => { if (event.key === 'Escape') choose(null, true); });
}

function choose(range, isDone) {
  selection = range;
  drawHeat();
  const chosen = range ? bySlice.slice(range[0], range[1] + 1).reduce((a, b) => a + b, 0) : total;
  find('selected').textContent = range
    ? `${seconds(range[0] * sliceMs)} to ${seconds((range[1] + 1) * sliceMs)}: ${amount(chosen)}, ${percent(chosen / (total || 1))} of all`
    : `all ${seconds(slices * sliceMs)}: ${amount(total)}`;
  find('whole').hidden = !range;
  if (isDone) { drawFlame(); list(); }
}

function show(tip, event, html) {
  const box = tip.parentElement.getBoundingClientRect();
  tip.innerHTML = html;
  tip.hidden = false;
  const x = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth);
  tip.style.transform = `translate(${Math.max(0, x)}px, ${event.clientY - box.top + 16}px)`;
}

// Weights within the selection.

function weightOf(stack) {
  let sum = 0;
  for (const [slice, weight] of stack.weights) if (!selection || (slice >= selection[0] && slice <= selection[1])) sum += weight;
  return sum;
}

function treeOf() {
  const root = { name: 'all', weight: 0, children: new Map() };
  for (const stack of stacks) {
    const weight = weightOf(stack);
    if (!weight) continue;
    root.weight += weight;
    let at = root;
    for (const frame of stack.frames) {
      if (!at.children.has(frame)) at.children.set(frame, { name: names[frame], weight: 0, children: new Map() });
      at = at.children.get(frame);
      at.weight += weight;
    }
  }
  return root;
}

// Flame graph. `drawn` holds each frame that is drawn, with its path from the root; `data-at` is
// the index.

let drawn = [];

function drawFlame() {
  const svg = document.querySelector('#flame svg');
  const width = svg.parentElement.clientWidth;
  const root = treeOf();
  drawn = [];
  let out = '', depth = 0;
  const draw = (node, way, x, wide, isAbove) => {
    if (wide < WIDTH_MIN) return;
    const y = way.length * ROW;
    depth = Math.max(depth, way.length + 1);
    const letters = Math.floor((wide - 6) / LETTER);
    const text = wide < 24 ? '' : node.name.length <= letters ? node.name : `${node.name.slice(0, letters - 1)}…`;
    const found = pattern && pattern.test(node.name) ? ' found' : '';
    out += `<g class="${isAbove ? 'above' : ''}${found}" data-at="${drawn.length}"><rect x="${x.toFixed(2)}" y="${y}" width="${wide.toFixed(2)}" height="${ROW - 1}" fill="${color(node.name)}"/>`
      + `<text x="${(x + 3).toFixed(1)}" y="${y + 12}">${escape(text)}</text></g>`;
    drawn.push({ node, way, share: node.weight / (root.weight || 1) });
    const next = isAbove && node.children.get(path[way.length]);
    if (next) return draw(next, [...way, path[way.length]], x, wide, way.length + 1 < path.length);
    let left = x;
    for (const [frame, child] of [...node.children].sort(([, a], [, b]) => a.name < b.name ? -1 : 1)) {
      const part = wide * child.weight / node.weight;
      draw(child, [...way, frame], left, part, false);
      left += part;
    }
  };
  draw(root, [], 0, width, path.length > 0);
  svg.innerHTML = out;
  svg.setAttribute('viewBox', `0 0 ${width} ${depth * ROW}`);
  svg.setAttribute('height', depth * ROW);
  tellFound(root);
}

// Share of the frames that match the search. Of nested matches only the outermost counts.
function tellFound(root) {
  const matching = node => pattern.test(node.name) ? node.weight : [...node.children.values()].reduce((sum, child) => sum + matching(child), 0);
  find('found').textContent = pattern ? `${percent(matching(root) / (root.weight || 1))} of the selection` : '';
}

function listenToFlame() {
  const [svg, tip] = document.querySelector('#flame').children;
  const frameAt = event => { const group = event.target.closest('g'); return group && drawn[group.dataset.at]; };
  svg.addEventListener('pointermove', event => {
    const frame = frameAt(event);
    if (!frame) { tip.hidden = true; return; }
    show(tip, event, `<b>${escape(frame.node.name)}</b>${amount(frame.node.weight)}, ${percent(frame.share)}`);
  });
  svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  svg.addEventListener('click', event => { const frame = frameAt(event); if (frame) { path = frame.way; drawFlame(); } });
  find('search').addEventListener('input', event => search(event.target.value));
}

function search(text) {
  try { pattern = text ? new RegExp(text, 'i') : null; } catch { pattern = new RegExp(text.replace(/[^\w]/g, '\\$&'), 'i'); }
  drawFlame();
}

// Ranked frames.

function list() {
  const bySelf = new Map(), byTotal = new Map(), byCall = new Map();
  let sum = 0;
  const count = (map, frame, weight) => map.set(frame, (map.get(frame) || 0) + weight);
  for (const stack of stacks) {
    const weight = weightOf(stack);
    if (!weight) continue;
    sum += weight;
    count(bySelf, stack.frames[stack.frames.length - 1], weight);
    for (const frame of new Set(stack.frames.slice(1))) count(byTotal, frame, weight);
    for (const call of new Set(stack.frames.slice(1, -1).map((frame, i) => `${frame} ${stack.frames[i + 2]}`))) count(byCall, call, weight);
  }
  // A frame that only calls one other frame is not listed; its callee is.
  for (const [call, weight] of byCall) {
    const [caller, callee] = call.split(' ').map(Number);
    if (caller !== callee && weight >= PASSES_ON * byTotal.get(caller)) byTotal.delete(caller);
  }
  const table = (host, map) => {
    const first = [...map].sort((a, b) => b[1] - a[1]).slice(0, LISTED);
    host.innerHTML = first.map(([frame, weight]) =>
      `<tr><td>${escape(names[frame])}</td><td>${percent(weight / sum)}</td><td>${amount(weight)}</td></tr>`).join('');
  };
  table(find('by-self'), bySelf);
  table(find('by-total'), byTotal);
}

function listenToLists() {
  for (const id of ['by-self', 'by-total']) find(id).addEventListener('click', event => {
    const cell = event.target.closest('td:first-child');
    if (!cell) return;
    find('search').value = `^${cell.textContent.replace(/[^\w: ]/g, '\\$&')}$`;
    search(find('search').value);
    find('search').scrollIntoView({ block: 'center' });
  });
}

const main = document.querySelector('main');
main.hidden = false;
main.querySelector('h1').textContent = document.title;
const lost = capture.lost ? `, ${capture.lost.toLocaleString('en-US')} samples lost` : '';
find('about').textContent = `${kind}: ${amount(total)} in ${seconds(slices * sliceMs)}, from ${new Date(capture.started_unix_ms).toISOString().replace('T', ' ').slice(0, 19)} UTC on${lost}`;
find('notes').innerHTML = (capture.notes || []).map(note => `<p>${escape(note)}</p>`).join('');
find('most').textContent = amount(mostInSlice);
listenToHeat();
listenToFlame();
listenToLists();
choose(null, true);
window.addEventListener('resize', () => { drawHeat(); drawFlame(); });
