// The data of the page, and helpers that make elements.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const COMMON = -1;  // the mean over groups of layers
const { terms } = data, TASK = terms.task;  // "task", or "level" of policies
const state = { task: null, query: "", step: 1, layer: COMMON, filter: "all", sort: "order", down: true, record: null };

/** Numbers that were packed into 16 bits; `at` takes an index for every axis. */
function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
  const values = new Uint16Array(bytes.buffer);
  const scale = (packed.high - packed.low) / 65535;
  const sizes = packed.shape;
  return {
    low: packed.low, high: packed.high > packed.low ? packed.high : packed.low + 1,
    at: (...places) => packed.low + scale * values[places.reduce((sum, place, axis) => sum * sizes[axis] + place, 0)],
  };
}

for (const run of data.runs) {
  run.weights = unpack(run.weights);
  run.means = unpack(run.means);
  run.number = new Map(run.tasks.map((task, number) => [task.name, number]));
}
const runs = data.runs;
const several = runs.length > 1;

/** Names of all tasks, in the order of the first run's tree; adapted tasks come last. */
const names = [...new Set(runs.flatMap((run) => [
  ...run.order.map((number) => run.tasks[number].name),
  ...run.tasks.slice(run.nTasks).map((task) => task.name),
]))];

function findTask(run, name) {
  const number = run.number.get(name);
  return number === undefined ? null : run.tasks[number];
}

function anyTask(name) {
  return runs.map((run) => findTask(run, name)).find((task) => task);
}

function look(name) {
  for (const run of runs) {
    const task = findTask(run, name);
    if (task && run.looks[task.category]) return run.looks[task.category];
  }
  return ["#777777", "#666666", "D"];
}

/** An outline around 0: corners at these distances, clockwise; the first is at an angle from the top. */
function outline(radii, start = 0) {
  const corners = radii.map((radius, number) => [radius, start + (2 * Math.PI * number) / radii.length]);
  return `M${corners.map(([radius, angle]) => `${(radius * Math.sin(angle)).toFixed(1)} ${(-radius * Math.cos(angle)).toFixed(1)}`).join("L")}Z`;
}

/** Markers of categories by their names in Matplotlib: colours repeat beyond seven categories. */
const star = [7, 2.6, 7, 2.6, 7, 2.6, 7, 2.6], quarter = Math.PI / 4;
const MARKERS = {
  o: "M-5.5 0A5.5 5.5 0 1 1 5.5 0A5.5 5.5 0 1 1 -5.5 0Z", s: outline([7, 7, 7, 7], quarter), "^": outline([7, 7, 7]),
  D: outline([7, 7, 7, 7]), v: outline([7, 7, 7], Math.PI), P: outline(star), X: outline(star, quarter),
  "*": outline([7.5, 3, 7.5, 3, 7.5, 3, 7.5, 3, 7.5, 3]), p: outline([6.5, 6.5, 6.5, 6.5, 6.5]), h: outline([6.5, 6.5, 6.5, 6.5, 6.5, 6.5]),
};

function marker(name, attributes = {}) {
  return svg("path", { class: "point", d: MARKERS[look(name)[2]], ...attributes });
}

function visible(name) {
  const query = state.query.trim().toLowerCase();
  return name.toLowerCase().includes(query) || anyTask(name).category.toLowerCase().includes(query);
}

/** The number of a run's step that the slider means: it counts in shares, runs differ in records. */
function stepOf(run) {
  return Math.round(state.step * (run.steps.length - 1));
}

/** The weight of a skill in the chosen layers, at the chosen step where it is the mean. */
function weight(run, number, skill) {
  if (state.layer !== COMMON && state.layer < run.groups.length) return run.weights.at(state.layer, number, skill);
  if (number < run.nTasks) return run.means.at(stepOf(run), number, skill);
  return finalMean(run, number, skill);
}

function finalMean(run, number, skill) {
  let sum = 0;
  for (let group = 0; group < run.groups.length; group++) sum += run.weights.at(group, number, skill);
  return sum / run.groups.length;
}

// Elements.

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function taskButton(name, attributes = {}) {
  const chosen = name === state.task;
  const style = `--c: ${look(name)[1]}`, shown = { type: "button", class: `name${chosen ? " chosen" : ""}`, style, onclick: () => select(name) };
  return html("button", { ...shown, "data-task": name, "aria-pressed": String(chosen), ...attributes }, name);
}

/** One picture per run, with its name where there are several; boxes keep their scroll position. */
function sides(place, draw) {
  const boxes = () => [...place.querySelectorAll(".scroll")];
  const before = boxes().map((box) => [box.scrollLeft, box.scrollTop]);
  place.replaceChildren(...runs.map((run) => {
    const drawn = draw(run);
    return drawn && html("figure", {}, several ? html("figcaption", {}, run.name) : null, drawn);
  }).filter((figure) => figure));
  boxes().forEach((box, number) => { [box.scrollLeft, box.scrollTop] = before[number] ?? [0, 0]; });
}

/** Draw, and focus what replaces the focused element: it has the same key. */
function redraw(drawing) {
  const { key } = document.activeElement.dataset, part = document.activeElement.closest("#panel");
  drawing();
  if (document.activeElement === document.body) (key ? document.querySelector(`[data-key="${key}"]`) : part)?.focus({ preventScroll: true });
}

/** Highlight the task under the pointer or focus in all views, or the tasks of a category. */
function light(event) {
  const { task, category } = event.target.closest?.("[data-task], [data-category]")?.dataset ?? {};
  byId("views").classList.toggle("dimmed", category !== undefined);
  for (const { dataset, classList } of document.querySelectorAll("[data-task], [data-category]")) {
    const own = dataset.category ?? anyTask(dataset.task).category;
    const lit = task === undefined ? own === category : (dataset.task ?? task) === task && own === anyTask(task).category;
    classList.toggle("lit", lit);
  }
}

function tip(event, text) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 12, window.innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8)}px`;
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const per = (value) => (100 * value).toFixed(1);
const isRate = (score) => !score.metric.startsWith("steps");
const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(Math.abs(value) < 10 ? 2 : 1);

// Colours.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const CIVIDIS = [[0, 34, 78], [65, 77, 107], [124, 123, 120], [188, 175, 111], [254, 232, 56]];
const RED = [[178, 24, 43], [239, 138, 98]], BLUE = [[33, 102, 172], [103, 169, 207]];

function between(stops, share) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  return `rgb(${stops[low].map((value, axis) => Math.round(value + (place - low) * (stops[low + 1][axis] - value)))})`;
}

/** White or black at zero; red is worse, whichever sign that has. */
function aroundZero(value, largest, lessIsWorse) {
  const worse = lessIsWorse ? value < 0 : value > 0;
  const middle = dark.matches ? [30, 34, 40] : [247, 247, 247];
  const [deep, pale] = worse ? RED : BLUE;
  return between(dark.matches ? [middle, deep, pale] : [middle, pale, deep], Math.abs(value) / largest);
}
