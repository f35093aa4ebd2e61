'use strict';

// A click on a frame enlarges it to the full width; "search" highlights the frames whose names
// match.

const svg = document.documentElement;
const [MARGIN, WIDTH, LETTER] = [10, 1180, 6.7];
const back = document.getElementById('back'), search = document.getElementById('search'), found = document.getElementById('found');
const frames = [...document.querySelectorAll('#frames g')].map(group => {
  const [title, rect, text] = group.children;
  const number = name => Number(rect.getAttribute(name));
  return { group, rect, text, title: title.textContent, name: title.textContent.replace(/ \([^(]*\)$/, ''),
    x: number('x'), y: number('y'), width: number('width') };
});

function zoom(to) {
  const scale = WIDTH / to.width;
  for (const frame of frames) {
    const isAbove = frame.y < to.y && frame.x <= to.x + 0.01 && frame.x + frame.width >= to.x + to.width - 0.01;
    const isWithin = frame.y >= to.y && frame.x >= to.x - 0.01 && frame.x + frame.width <= to.x + to.width + 0.01;
    frame.group.style.display = isAbove || isWithin ? '' : 'none';
    frame.group.classList.toggle('above', isAbove);
    const x = isAbove ? MARGIN : MARGIN + (frame.x - to.x) * scale;
    const width = isAbove ? WIDTH : frame.width * scale;
    frame.rect.setAttribute('x', x);
    frame.rect.setAttribute('width', width);
    frame.text.setAttribute('x', x + 3);
    const letters = Math.floor((width - 6) / LETTER);
    frame.text.textContent = width < 24 ? '' : frame.name.length <= letters ? frame.name : frame.name.slice(0, letters - 1) + '…';
  }
  back.setAttribute('visibility', to === frames[0] ? 'hidden' : 'visible');
}

// Share of the frames that match. Of nested matches only the outermost counts.
function mark(pattern) {
  let share = 0;
  const counted = [];
  for (const frame of frames) {
    const matches = pattern && pattern.test(frame.name);
    frame.group.classList.toggle('found', Boolean(matches));
    if (!matches) continue;
    const isWithin = counted.some(other => frame.x >= other.x - 0.01 && frame.x + frame.width <= other.x + other.width + 0.01);
    if (isWithin) continue;
    counted.push(frame);
    share += frame.width / WIDTH;
  }
  found.textContent = pattern ? `${pattern.source}: ${(100 * share).toFixed(1)} %` : '';
}

frames.forEach(frame => frame.group.addEventListener('click', () => zoom(frame)));
back.addEventListener('click', () => zoom(frames[0]));
search.setAttribute('visibility', 'visible');
search.addEventListener('click', () => {
  const wanted = prompt('Part of a name, or a regular expression:', '');
  if (wanted === null) return;
  let pattern = null;
  try { pattern = wanted && new RegExp(wanted, 'i'); } catch { pattern = new RegExp(wanted.replace(/[^\w]/g, '\\$&'), 'i'); }
  mark(pattern);
});
