'use strict';

// Draws one run, or several in the same charts, into each element that names its runs. Everything
// is drawn for the available width, and redrawn when that changes.

const MARGIN = { top: 26, right: 14, bottom: 44, left: 60 };
const COLORS = 6;

// Formatting.

const escape = text => String(text).replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' }[c]));
const digits = value => String(Number(value.toPrecision(3)));
const count = value => Math.round(value).toLocaleString('en-US');
// Uses the unit in which the value, once rounded, has one to three digits before the point.
const inUnit = (us, show) => us < 999.5 ? `${show(us)} µs` : us < 999.5e3 ? `${show(us / 1e3)} ms` : `${show(us / 1e6)} s`;
const latency = us => inUnit(us, value => value < 999.5 ? value.toPrecision(3) : count(value));
const tickLatency = us => inUnit(us, digits);
const time = s => s < 120 ? `${digits(s)} s` : s % 60 === 0 ? `${s / 60} min` : `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, '0')}`;
const size = bytes => bytes < 1024 ? `${digits(bytes)} B` : bytes < 1048576 ? `${digits(bytes / 1024)} KiB` : bytes < 1073741824 ? `${digits(bytes / 1048576)} MiB` : `${digits(bytes / 1073741824)} GiB`;
const short = value => value >= 1e6 ? `${digits(value / 1e6)}M` : value >= 1e4 ? `${digits(value / 1e3)}k` : count(value);
const color = i => `var(--s${i % COLORS})`;
const overall = run => run.run.latency.all || Object.values(run.run.latency)[0];
const at = (report, percentile) => (report.percentiles.find(([p]) => p === percentile) || [])[1];
const isOk = status => status < 400 || status === 404;
const sum = values => values.reduce((a, b) => a + b, 0);
const errorsOf = run => sum(Object.entries(run.run.statuses).filter(([s]) => !isOk(Number(s))).map(([, n]) => n))
  + sum(Object.values(run.run.failures)) + run.run.wrong_values;
// Scales and ticks.

const linear = (d0, d1, r0, r1) => value => r0 + (value - d0) / (d1 - d0 || 1) * (r1 - r0);
const logarithmic = (d0, d1, r0, r1) => {
  const inner = linear(Math.log10(d0), Math.log10(d1), r0, r1);
  return value => inner(Math.log10(Math.max(value, d0)));
};

function linearTicks(max, most) {
  const raw = max / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw);
  const ticks = [];
  for (let i = 0; i * step <= max * 1.0001; i++) ticks.push(i * step);
  return ticks;
}

function timeTicks(max, most) {
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400].find(n => max / n <= most) || max / most;
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => i * step);
}

function logTicks(lo, hi, pixels) {
  const perDecade = pixels / (Math.log10(hi / lo) || 1);
  const parts = perDecade > 110 ? [1, 2, 5] : perDecade > 60 ? [1, 3] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(lo)); power <= Math.log10(hi); power++)
    for (const part of parts) {
      const tick = part * 10 ** power;
      if (tick >= lo * 0.999 && tick <= hi * 1.001) ticks.push(tick);
    }
  return ticks.length > 1 ? ticks : [lo, hi];
}

// A latency axis that covers `values`, from a round number to a round number.
function latencyAxis(values, isLog, top, bottom) {
  const known = values.filter(value => value > 0);
  const hi = Math.max(...known, 1), lo = Math.min(...known, hi);
  if (!isLog) {
    const ticks = linearTicks(hi * 1.06, 5);
    return { scale: linear(0, hi * 1.06, bottom, top), ticks, label: tickLatency };
  }
  const round = (value, up) => {
    const power = 10 ** Math.floor(Math.log10(value));
    const steps = [1, 2, 5, 10].map(n => n * power);
    return up ? steps.find(n => n >= value * 0.9999) : steps.filter(n => n <= value * 1.0001).pop();
  };
  const [from, to] = [round(lo, false), round(hi, true)];
  const end = to > from ? to : from * 10;
  return { scale: logarithmic(from, end, bottom, top), ticks: logTicks(from, end, bottom - top), label: tickLatency };
}

// Charts.

function frame(width, height, x, y) {
  const { top, right, bottom, left } = MARGIN;
  const [floor, edge] = [height - bottom, width - right];
  let out = '';
  for (const tick of y.ticks) {
    const at = y.scale(tick).toFixed(1);
    out += `<line class="grid" x1="${left}" x2="${edge}" y1="${at}" y2="${at}"/>`
      + `<text x="${left - 8}" y="${at}" dy="0.35em" text-anchor="end">${y.label(tick)}</text>`;
  }
  for (const tick of x.ticks) {
    const at = x.scale(tick).toFixed(1);
    out += `<line class="axis" x1="${at}" x2="${at}" y1="${floor}" y2="${floor + 5}"/>`
      + `<text x="${at}" y="${floor + 18}" text-anchor="middle">${x.label(tick)}</text>`;
  }
  return out + `<line class="axis" x1="${left}" x2="${edge}" y1="${floor}" y2="${floor}"/>`
    + `<text class="title" x="0" y="12">${y.title}</text>`
    + `<text class="title" x="${edge}" y="${height - 5}" text-anchor="end">${x.title}</text>`;
}

const path = points => points.map(([x, y], i) => `${i ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
const line = (points, stroke, extra = '') => `<path class="line ${extra}" d="${path(points)}" style="stroke:${stroke}"/>`;
const rows = entries => `<table>${entries.map(([name, value, mark]) =>
  `<tr><td>${mark ? `<span class="swatch" style="background:${mark}"></span>` : ''}${escape(name)}</td><td>${value}</td></tr>`).join('')}</table>`;

// Draws `draw(width) -> { svg, height, label, hover(x) -> { x, html } }` into `host`, and again
// whenever its width changes.
function chart(host, draw) {
  host.className = 'chart';
  host.innerHTML = '<div class="plot"></div><div class="tip" hidden></div>';
  const [plot, tip] = host.children;
  let drawn;
  const redraw = () => {
    const width = Math.max(240, host.clientWidth);
    drawn = draw(width);
    plot.innerHTML = `<svg viewBox="0 0 ${width} ${drawn.height}" height="${drawn.height}" role="img" aria-label="${escape(drawn.label)}">`
      + `${drawn.svg}<g class="pointer"></g></svg>`;
    tip.hidden = true;
  };
  const leave = () => { tip.hidden = true; plot.querySelector('.pointer').innerHTML = ''; };
  plot.addEventListener('pointermove', event => {
    const found = drawn.hover && drawn.hover(event.clientX - plot.getBoundingClientRect().left);
    if (!found) return leave();
    plot.querySelector('.pointer').innerHTML =
      `<line class="cross" x1="${found.x}" x2="${found.x}" y1="${MARGIN.top}" y2="${drawn.height - MARGIN.bottom}"/>`;
    tip.innerHTML = found.html;
    tip.hidden = false;
    const isRight = found.x + tip.offsetWidth + 14 < host.clientWidth;
    const left = isRight ? found.x + 12 : Math.max(0, found.x - tip.offsetWidth - 12);
    tip.style.transform = `translate(${left}px, ${MARGIN.top}px)`;
  });
  plot.addEventListener('pointerleave', leave);
  let seen = 0;
  new ResizeObserver(() => { if (host.clientWidth !== seen) { seen = host.clientWidth; redraw(); } }).observe(host);
  return redraw;
}

// Draws `runs` into `page`.
function show(runs, page) {
  const labelOf = i => {
    const twin = runs.some((other, j) => j !== i && other.name === runs[i].name);
    return twin ? `${String.fromCharCode(65 + i)}: ${runs[i].name}` : runs[i].name;
  };

  function percentileChart(host, seriesOf, options) {
    return chart(host, width => {
      const height = width < 520 ? 300 : 380;
      const series = seriesOf();
      const [left, right, floor] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom];
      const most = Math.max(10, ...series.map(one => one.report.count));
      const nines = Math.log10(most);
      const place = percentile => Math.min(nines, percentile >= 100 ? nines : -Math.log10(1 - percentile / 100));
      const x = { scale: linear(0, nines, left, right), title: 'percentile of requests' };
      const known = [[0, '0'], [50, '50 %'], [90, '90 %'], [99, '99 %'], [99.9, '99.9 %'], [99.99, '99.99 %'], [99.999, '99.999 %'], [99.9999, '99.9999 %']];
      const room = (right - left) / nines;
      const shown = known.filter(([p]) => place(p) < nines - 1e-9 || p === 0)
        .filter(([p]) => p !== 50 || room > 150).filter(([p]) => room > 66 || p < 90 || [99, 99.99, 99.9999].includes(p));
      x.ticks = shown.map(([p]) => p);
      x.label = p => shown.find(([known]) => known === p)[1];
      const axis = { ...x, scale: p => x.scale(place(p)) };
      const y = latencyAxis(series.flatMap(one => one.report.spectrum.map(([, us]) => us)), options.isLog, MARGIN.top, floor);
      y.title = `latency${options.isLog ? ', log scale' : ''}`;
      const svg = frame(width, height, axis, y) + series.map(one =>
        line(one.report.spectrum.map(([p, us]) => [axis.scale(p), y.scale(us)]), one.color)).join('');
      const hover = px => {
        if (px < left || px > right) return null;
        const nine = Math.min(nines, Math.max(0, (px - left) / (right - left) * nines));
        const percentile = 100 * (1 - 10 ** -nine);
        const value = one => (one.report.spectrum.find(([p]) => p >= percentile) || one.report.spectrum.at(-1))[1];
        const shownAs = percentile.toFixed(Math.max(1, Math.min(5, Math.ceil(nine) - 1)));
        return { x: px, html: `<b>${shownAs} %</b> take at most` + rows(series.map(one => [one.name, latency(value(one)), one.color])) };
      };
      return { svg, height, hover, label: 'Latency by percentile' };
    });
  }

  const measuredRows = run => run.run.timeline.rows.filter(row => row.second < run.run.elapsed_s);
  const rowWidth = (run, row) => Math.min(run.run.timeline.seconds_per_row, run.run.elapsed_s - row.second);
  // The last row is excluded if it covers less than half of its width: its rate is not
  // representative.
  const steadyRows = run => measuredRows(run).filter(row => rowWidth(run, row) >= run.run.timeline.seconds_per_row / 2);

  function timeAxis(width, end) {
    const [left, right] = [MARGIN.left, width - MARGIN.right];
    return { scale: linear(0, end, left, right), ticks: timeTicks(end, (right - left) / 70), label: time, title: 'time since the end of the warm-up' };
  }

  // Least latency of a bucket.
  const lowerBound = (heat, bucket) => bucket === 0 ? heat.from_us / 2
    : heat.from_us * 2 ** Math.floor((bucket - 1) / heat.buckets_per_octave) * (1 + (bucket - 1) % heat.buckets_per_octave / heat.buckets_per_octave);

  // Range of latencies that all heat maps cover, so that they can be compared.
  function heatExtent() {
    return runs.flatMap(({ run: { timeline: { heat } } }) => {
      const buckets = heat.columns.flatMap(column => column.map(([bucket]) => bucket));
      return buckets.length ? [lowerBound(heat, Math.min(...buckets)), lowerBound(heat, Math.max(...buckets) + 1)] : [];
    });
  }

  function heatChart(host, run) {
    const { heat } = run.run.timeline;
    const lower = bucket => lowerBound(heat, bucket);
    const extent = heatExtent();
    return chart(host, width => {
      const height = width < 520 ? 280 : 340;
      const floor = height - MARGIN.bottom;
      const end = run.run.elapsed_s;
      const x = timeAxis(width, Math.max(...runs.map(other => other.run.elapsed_s)));
      const columns = heat.columns.filter((_, i) => i * heat.seconds_per_column < end);
      const merge = Math.max(1, Math.ceil(columns.length / ((width - MARGIN.left - MARGIN.right) / 3)));
      const cells = new Map();
      columns.forEach((column, i) => column.forEach(([bucket, n]) => {
        const key = Math.floor(i / merge) * 4096 + bucket;
        cells.set(key, (cells.get(key) || 0) + n);
      }));
      const y = latencyAxis(extent, true, MARGIN.top, floor);
      y.title = 'latency, log scale';
      const top = Math.log(1 + Math.max(...cells.values()));
      const step = merge * heat.seconds_per_column;
      let squares = '';
      for (const [key, n] of cells) {
        const [column, bucket] = [Math.floor(key / 4096), key % 4096];
        const [x0, x1] = [x.scale(column * step), x.scale(Math.min(end, (column + 1) * step))];
        const [y0, y1] = [y.scale(lower(bucket + 1)), y.scale(lower(bucket))];
        squares += `<rect x="${x0.toFixed(1)}" y="${y0.toFixed(1)}" width="${Math.max(0.5, x1 - x0 - (x1 - x0 > 5 ? 1 : 0)).toFixed(1)}" height="${(y1 - y0 + 0.3).toFixed(1)}" fill-opacity="${(0.1 + 0.9 * Math.log(1 + n) / top).toFixed(2)}"/>`;
      }
      const measured = measuredRows(run).filter(row => row.answers > 0);
      const hover = px => {
        const row = nearest(measured, x.scale, px, run);
        return row && { x: x.scale(row.second + rowWidth(run, row) / 2), html: `<b>${time(row.second)}</b>` + rows([
          ['answers', count(row.answers)], ['p50', latency(row.p50_us)], ['p99', latency(row.p99_us)],
          ['p99.9', latency(row.p999_us)], ['max', latency(row.max_us)]]) };
      };
      return { svg: frame(width, height, x, y) + `<g style="fill:var(--heat)">${squares}</g>`, height, hover, label: 'Latency over time' };
    });
  }

  function nearest(candidates, scale, px, run) {
    let best = null, distance = 40;
    for (const row of candidates) {
      const off = Math.abs(scale(row.second + rowWidth(run, row) / 2) - px);
      if (off < distance) [best, distance] = [row, off];
    }
    return best;
  }

  // One value per row, for all runs. `fixed`: horizontal lines.
  function overTime(host, { height, title, label, value, fixed = [], tip, showsBars, isLast = true }) {
    return chart(host, width => {
      const floor = height - MARGIN.bottom;
      const end = Math.max(...runs.map(run => run.run.elapsed_s));
      const x = timeAxis(width, end);
      if (!isLast) x.title = '';
      const points = runs.map(run => steadyRows(run).map(row => [row, value(row) / rowWidth(run, row)]));
      const max = Math.max(1, ...fixed.map(one => one.value), ...points.flat().map(([, v]) => v)) * 1.08;
      const y = { scale: linear(0, max, floor, MARGIN.top), ticks: linearTicks(max, height > 150 ? 5 : 2), label: short, title };
      let svg = frame(width, height, x, y);
      for (const one of fixed) svg += line([[MARGIN.left, y.scale(one.value)], [width - MARGIN.right, y.scale(one.value)]], one.color, 'thin dash');
      runs.forEach((run, i) => {
        const middle = row => x.scale(row.second + rowWidth(run, row) / 2);
        if (!showsBars) svg += line(points[i].map(([row, v]) => [middle(row), y.scale(v)]), color(i));
        else for (const [row, v] of points[i].filter(([, v]) => v > 0)) {
          const full = x.scale(row.second + rowWidth(run, row)) - x.scale(row.second);
          const one = Math.max(1, (full - (full > 5 ? 1 : 0)) / runs.length);
          const fill = runs.length > 1 ? color(i) : 'var(--bad)';
          svg += `<rect x="${(x.scale(row.second) + i * one).toFixed(1)}" y="${y.scale(v).toFixed(1)}" width="${one.toFixed(1)}" height="${(floor - y.scale(v)).toFixed(1)}" style="fill:${fill}"/>`;
        }
      });
      const hover = px => {
        const found = runs.map(run => nearest(steadyRows(run), x.scale, px, run));
        const first = found.findIndex(Boolean);
        if (first < 0) return null;
        const html = found.map((row, i) => row ? tip(row, runs[i], i) : '').join('');
        return { x: x.scale(found[first].second + rowWidth(runs[first], found[first]) / 2), html: `<b>${time(found[first].second)}</b>${html}` };
      };
      return { svg, height, hover, label };
    });
  }

  function searchChart(host, run) {
    const { trials, knee, working_point: working } = run.search;
    const told = trials.filter(trial => trial.max_us > 0);
    const kinds = [['p50', 'p50_us', 0], ['p99', 'p99_us', 1], ['p99.9', 'p999_us', 3]];
    return chart(host, width => {
      const height = width < 520 ? 310 : 380;
      const floor = height - MARGIN.bottom;
      const max = Math.max(...told.map(trial => trial.rate)) * 1.05;
      const [left, right] = [MARGIN.left, width - MARGIN.right];
      const x = { scale: linear(0, max, left, right), ticks: linearTicks(max, (right - left) / 80), label: short, title: 'requested rate, requests/s' };
      const y = latencyAxis(told.flatMap(trial => kinds.map(([, key]) => trial[key])), true, MARGIN.top + 34, floor);
      y.title = 'latency, log scale';
      let svg = frame(width, height, x, y);
      const mark = (rate, text, level) => {
        const px = x.scale(rate);
        const anchor = px > (left + right) / 2 ? 'end' : 'start';
        svg += `<line class="cross" x1="${px}" x2="${px}" y1="${MARGIN.top + level * 16}" y2="${floor}"/>`
          + `<text class="mark" x="${px + (anchor === 'end' ? -6 : 6)}" y="${MARGIN.top + level * 16 + 8}" text-anchor="${anchor}">${text} ${count(rate)}/s</text>`;
      };
      if (knee) mark(knee, 'knee', 0);
      if (working) mark(working, 'working point', 1);
      const sorted = [...told].sort((a, b) => a.rate - b.rate);
      for (const [, key, i] of kinds) {
        svg += line(sorted.filter(trial => trial.held).map(trial => [x.scale(trial.rate), y.scale(trial[key])]), color(i), 'thin');
        for (const trial of sorted) {
          const fill = trial.held ? color(i) : 'var(--surface)';
          svg += `<circle cx="${x.scale(trial.rate).toFixed(1)}" cy="${y.scale(trial[key]).toFixed(1)}" r="${trial.is_long ? 5.5 : 4}" style="fill:${fill};stroke:${color(i)};stroke-width:2"/>`;
        }
      }
      const hover = px => {
        const best = sorted.reduce((a, b) => Math.abs(x.scale(b.rate) - px) < Math.abs(x.scale(a.rate) - px) ? b : a);
        return { x: x.scale(best.rate), html: `<b>${count(best.rate)}/s</b> ${best.held ? 'held' : 'did not hold'}`
          + rows([...kinds.map(([name, key, i]) => [name, latency(best[key]), color(i)]), ['answered/s', count(best.arrived_per_s)], ['errors', count(best.errors)]]) };
      };
      return { svg, height, hover, label: 'Latency by rate' };
    });
  }

  // Page.

  function section(title, about) {
    const made = document.createElement('section');
    made.innerHTML = `<h2>${title}</h2>${about ? `<p>${about}</p>` : ''}`;
    page.append(made);
    return made;
  }

  function add(parent, html = '') {
    const made = document.createElement('div');
    made.innerHTML = html;
    parent.append(made);
    return made;
  }

  const legend = entries => `<div class="legend">${entries.map(([name, stroke, kind = '']) =>
    `<span><i class="${kind}" style="border-color:${stroke}"></i>${escape(name)}</span>`).join('')}</div>`;

  // Buttons of which one is pressed.
  function choice(bar, names, chosen, choose) {
    const made = document.createElement('div');
    made.className = 'switch';
    names.forEach(name => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = name;
      button.setAttribute('aria-pressed', name === chosen);
      button.addEventListener('click', () => {
        made.querySelectorAll('button').forEach(other => other.setAttribute('aria-pressed', other === button));
        choose(name);
      });
      made.append(button);
    });
    bar.append(made);
  }

  const paceOf = run => run.search ? `searched for the highest rate that holds ${run.search.goal}`
    : run.run.asked_per_s ? `${count(run.run.asked_per_s)} requests/s requested` : 'closed loop';
  const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

  function describe(run) {
    const { load } = run;
    return [
      load.mix,
      `${count(load.keys)} ${load.order} keys`,
      `values of ${load.value_size}`,
      load.limit ? `ranges of up to ${plural(load.limit, 'entry').replace('entrys', 'entries')}` : '',
      load.quorum ? `${load.quorum} replicas` : '',
      load.ttl_ms ? `ttl ${count(load.ttl_ms)} ms` : '',
      plural(load.connections, 'connection'),
      paceOf(run),
    ].filter(Boolean).join(' · ');
  }

  function head() {
    const made = document.createElement('header');
    const [run] = runs;
    if (runs.length > 1) {
      made.innerHTML = `<h1>${runs.length} runs compared</h1><p>Ratios are to the first run, ${escape(labelOf(0))}.</p>`;
      page.append(made);
      return;
    }
    const badge = run.interrupted ? '<span class="badge">interrupted</span>' : '';
    made.innerHTML = `<h1>${escape(run.name)}${badge}</h1><p>${escape(describe(run))}</p>`;
    const lat = overall(run);
    const errors = errorsOf(run);
    const kept = run.run.asked_per_s ? `kept ${(run.run.arrived_per_s / run.run.asked_per_s * 100).toFixed(2)} %` : 'closed loop';
    const tiles = [[`${count(run.run.arrived_per_s)}/s`, kept]];
    if (run.search) tiles.push([run.search.knee ? `${count(run.search.knee)}/s` : 'none', 'knee']);
    if (lat) for (const [p, name] of [[50, 'p50'], [99, 'p99'], [99.9, 'p99.9'], [100, 'longest']]) tiles.push([latency(at(lat, p)), name]);
    tiles.push([count(errors), errors === 1 ? 'error' : 'errors', errors > 0]);
    made.innerHTML += `<div class="tiles">${tiles.map(([value, name, isBad]) =>
      `<div class="tile${isBad ? ' bad' : ''}"><b>${value}</b><span>${name}</span></div>`).join('')}</div>`;
    page.append(made);
  }

  function summary() {
    const ratio = (value, first) => first > 0 && value !== first ? ` <small>×${digits(value / first)}</small>` : '';
    const columns = [
      ['answered/s', run => run.run.arrived_per_s, count],
      ['kept', run => run.run.asked_per_s ? run.run.arrived_per_s / run.run.asked_per_s * 100 : null, value => `${value.toFixed(2)} %`, true],
      ...[[50, 'p50'], [99, 'p99'], [99.9, 'p99.9'], [100, 'max']].map(([p, name]) => [name, run => overall(run) ? at(overall(run), p) : null, latency]),
      ['errors', errorsOf, count, true],
      ['knee/s', run => run.search && run.search.knee, count],
    ].filter(([, value]) => runs.some(run => value(run) != null));
    const body = runs.map((run, i) => `<tr><th class="left"><span class="swatch" style="background:${color(i)}"></span>${escape(labelOf(i))}</th>`
      + columns.map(([, value, show, isPlain]) => {
        const [own, first] = [value(run), value(runs[0])];
        return `<td>${own == null ? '–' : show(own) + (isPlain || first == null ? '' : ratio(own, first))}</td>`;
      }).join('') + '</tr>').join('');
    add(section('Side by side'), `<div class="scroll"><table class="numbers"><thead><tr><th>run</th>${columns.map(([name]) => `<th>${name}</th>`).join('')}</tr></thead><tbody>${body}</tbody></table></div>`);
  }

  function search(run, i) {
    const made = section(runs.length > 1 ? `Results by rate: ${escape(labelOf(i))}` : 'Results by rate',
      `Condition: ${escape(run.search.goal)}. The knee is the highest rate that held in a short trial; the working point held in a long measurement.`);
    add(made, legend([['p50', color(0)], ['p99', color(1)], ['p99.9', color(3)], ['held', 'var(--ink-2);background:var(--ink-2)', 'dot'], ['did not hold', 'var(--ink-2)', 'dot']])).className = 'bar';
    searchChart(add(made), run);
    const cells = trial => `<tr><td>${count(trial.rate)}${trial.is_long ? ' <small>long</small>' : ''}</td><td>${count(trial.arrived_per_s)}</td>`
      + ['p50_us', 'p99_us', 'p999_us', 'max_us'].map(key => `<td>${trial[key] ? latency(trial[key]) : '–'}</td>`).join('')
      + `<td class="${trial.errors ? 'bad' : ''}">${count(trial.errors)}</td><td class="left">${trial.held ? 'yes' : 'no'}</td><td class="left why">${escape(trial.why.join(', '))}</td></tr>`;
    add(made, `<details><summary>${plural(run.search.trials.length, 'trial')} in numbers</summary><div class="scroll"><table class="numbers"><thead><tr><th>asked/s</th><th>answered/s</th><th>p50</th><th>p99</th><th>p99.9</th><th>max</th><th>errors</th><th class="left">held</th><th class="left">because</th></tr></thead><tbody>${run.search.trials.map(cells).join('')}</tbody></table></div></details>`);
  }

  function byPercentile() {
    const made = section('Latency by percentile', 'Measured from the scheduled time of each request. Farther to the right, fewer requests are slower.');
    const bar = add(made);
    bar.className = 'bar';
    const operations = [...new Set(runs.flatMap(run => Object.keys(run.run.latency)))];
    const options = { isLog: true };
    let operation = operations.includes('all') ? 'all' : operations[0];
    const series = () => runs.length > 1
      ? runs.map((run, i) => ({ name: labelOf(i), color: color(i), report: operation === 'all' ? overall(run) : run.run.latency[operation] })).filter(one => one.report)
      : operations.map((name, i) => ({ name, color: name === 'all' ? 'var(--ink-2)' : color(i), report: runs[0].run.latency[name] }));
    bar.innerHTML = legend(runs.length > 1 ? runs.map((_, i) => [labelOf(i), color(i)]) : series().map(one => [one.name, one.color]));
    const host = add(made);
    let redraw = () => {};
    if (runs.length > 1 && operations.length > 1) choice(bar, operations, operation, name => { operation = name; redraw(); });
    choice(bar, ['log', 'linear'], 'log', name => { options.isLog = name === 'log'; redraw(); });
    redraw = percentileChart(host, series, options);
  }

  function overTheRun() {
    const made = section('Latency over time', 'Each column is a time interval; the colour of a cell shows how many of its responses had that latency.');
    add(made, '<div class="legend"><span>few responses<span class="ramp"></span>many</span></div>').className = 'bar';
    runs.forEach((run, i) => {
      if (!run.run.timeline.heat.columns.some(column => column.length)) return;
      if (runs.length > 1) add(made, `<h3><span class="swatch" style="background:${color(i)}"></span>${escape(labelOf(i))}</h3>`);
      heatChart(add(made), run);
    });
  }

  function rateAndErrors() {
    const made = section('Rate and errors over time', 'Responses by the time of their arrival.');
    const asked = runs.map((run, i) => ({ value: run.run.asked_per_s, color: runs.length > 1 ? color(i) : 'var(--ink-2)' })).filter(one => one.value);
    const entries = runs.map((_, i) => [runs.length > 1 ? labelOf(i) : 'answered', color(i)]);
    if (asked.length) entries.push(['asked for', 'var(--ink-2)', 'dashed']);
    add(made, legend(entries)).className = 'bar';
    const name = i => runs.length > 1 ? labelOf(i) : 'answered';
    const hasErrors = runs.some(run => errorsOf(run) > 0);
    overTime(add(made), { height: 260, isLast: !hasErrors, title: 'answers/s', label: 'Responses per second', value: row => row.answers, fixed: asked,
      tip: (row, run, i) => rows([[name(i), `${count(row.answers / rowWidth(run, row))}/s`, color(i)]]) });
    if (!hasErrors) return add(made, '<p class="note">There were no errors.</p>');
    overTime(add(made), { height: 150, title: 'errors/s', label: 'Errors per second', value: row => row.not_ok, showsBars: true,
      tip: (row, run, i) => rows(Object.keys(row.errors).length ? Object.entries(row.errors).map(([what, n]) => [/^\d+$/.test(what) ? `status ${what}` : what, count(n), runs.length > 1 ? color(i) : 'var(--bad)']) : [['errors', '0']]) });
  }

  function numbers() {
    const made = section('In numbers');
    const wanted = [50, 75, 90, 99, 99.9, 99.99, 99.999, 100];
    const lines = runs.flatMap((run, i) => Object.entries(run.run.latency).map(([operation, report]) =>
      `<tr><th class="left">${runs.length > 1 ? `<span class="swatch" style="background:${color(i)}"></span>${escape(labelOf(i))}, ` : ''}${escape(operation)}</th>`
      + `<td>${count(report.count)}</td><td>${latency(report.mean_us)}</td>${wanted.map(p => `<td>${latency(at(report, p))}</td>`).join('')}</tr>`));
    add(made, `<div class="scroll"><table class="numbers"><thead><tr><th></th><th>requests</th><th>mean</th>${wanted.map(p => `<th>${p === 100 ? 'max' : `p${p}`}</th>`).join('')}</tr></thead><tbody>${lines.join('')}</tbody></table></div>`);
  }

  function origin(run, i) {
    const made = section(runs.length > 1 ? `Method and environment: ${escape(labelOf(i))}` : 'Method and environment');
    const { machine, load, cost } = run;
    const answered = [...Object.entries(run.run.statuses).map(([status, n]) => `${status}: ${count(n)}`),
      ...Object.entries(run.run.failures).map(([failure, n]) => `${failure}: ${count(n)}`),
      ...(run.run.wrong_values ? [`wrong values: ${count(run.run.wrong_values)}`] : [])];
    const facts = [
      ['command', `<code>${escape(run.command)}</code>`],
      ['begun', escape(run.started.replace('T', ' ').replace('Z', ' UTC'))],
      ['measured', `${digits(run.run.elapsed_s)} s after ${digits(load.warmup_s)} s of warm-up${run.interrupted ? ', interrupted' : ''}`],
      ['servers', run.servers.map(server => escape([`${server.url}: ${server.software}`, ...server.facts].join(', '))).join('<br>')],
      ['generator', escape(`${run.generator}, ${plural(load.threads, 'thread')}, seed ${load.seed}`)],
      ['machine', escape(`${machine.cpu}, ${plural(machine.cores, 'core')}, ${size(machine.memory_bytes)}, ${machine.kernel}`)],
      ['load', escape(describe(run) + (load.preloaded ? ` · ${count(load.preloaded)} keys stored before` : ''))],
      ['answers', escape(answered.join(', '))],
      ['read', `${size(run.run.body_bytes)}${run.run.entries ? `, ${count(run.run.entries)} entries` : ''}`],
      ['CPU per request', `generator ${latency(cost.generator_us_per_answer)} (busy ${digits(cost.generator_busy * 100)} % of its time)${cost.server_us_per_answer ? `, server ${latency(cost.server_us_per_answer)}` : ''}`],
      ['profile', escape((run.profile || []).join(', '))],
    ['published', run.published ? `${escape(run.published)} (by others, on machines of their own)` : ''],
    ];
    add(made, `<dl>${facts.filter(([, value]) => value).map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join('')}</dl>`);
  }

  function drawSearches() {
    runs.forEach((run, i) => { if (run.search && run.search.trials.some(trial => trial.max_us > 0)) search(run, i); });
  }

  head();
  if (runs.length > 1) summary();
  drawSearches();
  if (runs.some(overall)) { byPercentile(); overTheRun(); rateAndErrors(); numbers(); }
  runs.forEach(origin);
}

for (const host of document.querySelectorAll('[data-runs]'))
  show(JSON.parse(document.getElementById(host.dataset.runs).textContent), host);
