"""The page's HTML, style and script; `mttl.analysis.page` fills in title, data and library."""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{TITLE}}</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light; --ink: #222; --soft: #5c5c5c; --line: #d5d5d5; --accent: #0072b2; }
  * { box-sizing: border-box; }
  body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.45 system-ui, sans-serif; }
  header { position: sticky; top: 0; z-index: 2; background: #fff; padding: 12px 20px;
           border-bottom: 1px solid var(--line); }
  h1 { font-size: 19px; margin: 0 0 2px; }
  h2 { font-size: 16px; margin: 0 0 4px; overflow-wrap: anywhere; }
  h3 { font-size: 13px; margin: 16px 0 4px; color: var(--soft); font-weight: 600;
       overflow-wrap: anywhere; }
  p { margin: 0; color: var(--soft); }
  form { display: flex; flex-wrap: wrap; gap: 10px 24px; margin-top: 10px; align-items: start; }
  label { display: block; font-size: 13px; color: var(--soft); }
  input, select { font: inherit; color: inherit; padding: 4px 6px; border: 1px solid #8a8a8a;
                  border-radius: 4px; background: #fff; max-width: 100%; }
  input[type=search] { width: 230px; }
  input[type=range] { width: 230px; padding: 0; border: 0; vertical-align: middle; }
  input[type=search], select { height: 32px; }
  #training input { height: 32px; display: block; }
  #found { margin-left: 6px; }
  :focus-visible { outline: 3px solid var(--accent); outline-offset: 1px; }
  main { display: grid; grid-template-columns: minmax(0, max-content) minmax(240px, 340px);
         gap: 24px; padding: 12px 20px 40px; align-items: start; }
  #chart { overflow-x: auto; }
  aside { position: sticky; top: 140px; max-height: calc(100vh - 160px); overflow-y: auto;
          border: 1px solid var(--line); border-radius: 6px; padding: 14px 16px; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  td, th { padding: 1px 8px 1px 0; text-align: left; font-weight: normal; }
  td.bar { width: 60%; padding: 0; }
  td.bar span { display: block; height: 10px; background: var(--accent); min-width: 1px; }
  ul { list-style: none; margin: 0; padding: 0; }
  button { font: inherit; background: none; border: 0; padding: 2px 0; cursor: pointer;
           text-align: left; text-decoration: underline; color: var(--ink);
           overflow-wrap: anywhere; }
  @media (max-width: 800px) { main { grid-template-columns: minmax(0, 1fr); }
                              aside, header { position: static; max-height: none; } }
</style>
</head>
<body>
<header>
  <h1>{{TITLE}}</h1>
  <p id="summary"></p>
  <form id="controls">
    <div>
      <label for="search">Find tasks by name or category (Enter selects the first)</label>
      <input type="search" id="search" autocomplete="off" spellcheck="false">
      <span id="found" role="status"></span>
    </div>
    <div>
      <label for="group">Layers</label>
      <select id="group"></select>
    </div>
    <div id="training">
      <label for="step">Training: <output id="moment" for="step"></output></label>
      <input type="range" id="step" min="0" step="1">
    </div>
  </form>
</header>
<noscript><p style="padding: 20px">This page needs JavaScript.</p></noscript>
<main>
  <div id="chart" role="img" aria-label="Heat map of mixing weights, tasks by skills.
    The panel of a task lists the same numbers."></div>
  <aside aria-live="polite" id="panel"></aside>
</main>
<script>{{PLOTLY}}</script>
<script type="application/json" id="data">{{DATA}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [nTasks, nSkills, nGroups] = [data.tasks.length, data.nSkills, data.groups.length];
const weights = new Float32Array(
  Uint8Array.from(atob(data.weights), (character) => character.charCodeAt(0)).buffer);
const byId = (id) => document.getElementById(id);
const MEAN = -1;
const ROW = 19;
const HEAD = 50;  // room above the rows
const state = { query: "", group: MEAN, step: data.steps.length - 1, task: null };

// What is shown.

function weight(step, group, task, skill) {
  if (group !== MEAN) {
    return weights[((step * nGroups + group) * nTasks + task) * nSkills + skill];
  }
  let sum = 0;
  for (let each = 0; each < nGroups; each++) sum += weight(step, each, task, skill);
  return sum / nGroups;
}

function row(task, step = state.step) {
  return Array.from({ length: nSkills }, (_, skill) => weight(step, state.group, task, skill));
}

/** The range of the layers' weights over training: colours of all steps can be compared. */
const ranges = new Map();
function range() {
  if (!ranges.has(state.group)) {
    let [low, high] = [Infinity, -Infinity];
    for (let step = 0; step < data.steps.length; step++) {
      for (let task = 0; task < nTasks; task++) {
        for (const value of row(task, step)) {
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    ranges.set(state.group, [low, high > low ? high : low + 1]);
  }
  return ranges.get(state.group);
}

function visible() {
  const query = state.query.trim().toLowerCase();
  return data.order.filter((id) => {
    const task = data.tasks[id];
    return task.name.toLowerCase().includes(query) || task.category.toLowerCase().includes(query);
  });
}

/** Plotly reads tags in text. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function nearest(task) {
  return task.nearest.map(([other, value]) => {
    return `${plain(data.tasks[other].name)} (${value.toFixed(2)})`;
  });
}

// The heat map.

const chart = byId("chart");
let shown = [];  // the tasks of its rows

function draw() {
  shown = visible();
  const z = shown.map((id) => row(id));
  const [zmin, zmax] = range();
  const text = shown.map((id, index) => {
    const task = data.tasks[id];
    const rest = `<br>nearest: ${nearest(task).join("<br>              ")}`;
    return z[index].map((value, skill) => {
      return `<b>${plain(task.name)}</b><br>${plain(task.category)}`
        + `<br>skill ${skill}: <b>${value.toFixed(3)}</b>${rest}`;
    });
  });
  const names = shown.map((id) => {
    const task = data.tasks[id];
    const name = id === state.task ? `<b>▸ ${plain(task.name)}</b>` : plain(task.name);
    return `<span style="color:${task.ink}">${name}</span>`;
  });
  const longest = Math.max(0, ...data.tasks.map((task) => task.name.length));
  const left = 24 + 7.2 * longest;
  const width = left + Math.max(220, 34 * nSkills) + 90;
  const marked = shown.indexOf(state.task);
  const trace = {
    type: "heatmap", z, text, zmin, zmax, colorscale: "Cividis", xgap: 1, ygap: 1,
    hovertemplate: "%{text}<extra></extra>",
    colorbar: { title: { text: "weight" }, thickness: 12, lenmode: "pixels", len: 160,
                y: 1, yanchor: "top", outlinewidth: 0 },
  };
  const layout = {
    width, height: HEAD + 20 + ROW * Math.max(shown.length, 9),
    margin: { l: left, r: 80, t: HEAD, b: 20 },
    font: { family: "system-ui, sans-serif", size: 12, color: "#222" },
    xaxis: { side: "top", title: { text: "skill", standoff: 4 }, ticks: "", tick0: 0,
             dtick: Math.ceil(nSkills / 40), fixedrange: true, showgrid: false, zeroline: false },
    yaxis: { ticks: "", ticklabelstandoff: 6, ticktext: names, fixedrange: true,
             tickvals: shown.map((_, index) => index),
             range: [Math.max(shown.length, 9) - 0.5, -0.5], showgrid: false,
             zeroline: false },
    hoverlabel: { bgcolor: "#fff", bordercolor: "#222", align: "left", font: { color: "#222" } },
    dragmode: false,
    shapes: marked < 0 ? [] : [{
      type: "rect", x0: -0.5, x1: nSkills - 0.5, y0: marked - 0.5, y1: marked + 0.5,
      line: { color: "#d55e00", width: 3 } }],
  };
  Plotly.react(chart, [trace], layout, { displayModeBar: false, responsive: false });
  byId("found").textContent = `${shown.length} of ${nTasks} tasks`;
  byId("moment").textContent = data.steps[state.step];
  byId("step").setAttribute("aria-valuetext", data.steps[state.step]);
}

// The panel of a task.

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function list(items) {
  const made = element("ul");
  for (const item of items) {
    const entry = element("li");
    entry.append(...item);
    made.append(entry);
  }
  return made;
}

function drawPanel() {
  const panel = byId("panel");
  panel.replaceChildren();
  if (state.task === null) {
    panel.append(element("h2", "Choose a task"));
    panel.append(element("p", "Click a row of the map, or find a task and press Enter."));
  } else {
    const task = data.tasks[state.task];
    const title = element("h2", task.name);
    title.style.color = task.ink;
    panel.append(title, element("p", task.category));
    const where = state.group === MEAN ? "mean over all layers" : data.groups[state.group].name;
    panel.append(element("h3", `Weights, ${where}, ${data.steps[state.step]}`));
    const table = element("table");
    const values = row(state.task);
    const high = range()[1];
    values.forEach((value, skill) => {
      const line = element("tr");
      const bar = element("td", "", { class: "bar" });
      const share = Math.max(0, Math.min(100, 100 * value / high));
      const filled = element("span");
      filled.style.width = `${share}%`;
      bar.append(filled);
      line.append(element("th", `skill ${skill}`, { scope: "row" }),
                  element("td", value.toFixed(3)), bar);
      table.append(line);
    });
    panel.append(table, element("h3", "Nearest tasks (correlation, all layers)"));
    panel.append(list(task.nearest.map(([other, value]) => {
      const button = element("button", data.tasks[other].name, { type: "button" });
      button.style.color = data.tasks[other].ink;
      button.addEventListener("click", () => select(other));
      return [button, ` ${value.toFixed(2)}`];
    })));
  }
  const inks = new Map(data.tasks.map((task) => [task.category, task.ink]));
  panel.append(element("h3", "Categories"), list([...inks.keys()].sort().map((category) => {
    const button = element("button", category, { type: "button" });
    button.style.color = inks.get(category);
    button.addEventListener("click", () => find(category));
    return [button];
  })));
}

// What the reader does.

function update() {
  draw();
  drawPanel();
}

function find(query) {
  byId("search").value = query;
  state.query = query;
  draw();
}

function select(id) {
  state.task = id;
  if (!visible().includes(id)) find("");
  update();
  const top = chart.getBoundingClientRect().top + HEAD + ROW * shown.indexOf(id);
  const header = document.querySelector("header").offsetHeight;
  if (top < header || top > window.innerHeight - ROW) {
    window.scrollBy({ top: top - window.innerHeight / 2 });
  }
}

function start() {
  byId("summary").textContent = `${nTasks} tasks, ${nSkills} skills, ${nGroups} groups of layers`;
  const choice = byId("group");
  choice.append(element("option", "mean over all layers", { value: MEAN }));
  const parts = new Map();
  data.groups.forEach((group, index) => {
    if (group.stack && !parts.has(group.stack)) {
      parts.set(group.stack, element("optgroup", "", { label: group.stack }));
      choice.append(parts.get(group.stack));
    }
    (parts.get(group.stack) ?? choice).append(element("option", group.name, { value: index }));
  });
  choice.addEventListener("change", () => {
    state.group = Number(choice.value);
    update();
  });
  const slider = byId("step");
  slider.max = data.steps.length - 1;
  slider.value = state.step;
  slider.addEventListener("input", () => {
    state.step = Number(slider.value);
    update();
  });
  byId("training").hidden = data.steps.length < 2;
  byId("search").addEventListener("input", (event) => find(event.target.value));
  byId("controls").addEventListener("submit", (event) => {
    event.preventDefault();
    if (shown.length) select(shown[0]);
  });
  update();
  chart.on("plotly_click", (event) => select(shown[event.points[0].pointIndex[0]]));
}

start();
</script>
{{TOKENS}}</body>
</html>
"""
