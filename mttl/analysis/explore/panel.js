// The panel of the selected task.

function drawPanel() {
  const panel = byId("panel");
  if (state.task === null) {
    panel.replaceChildren(html("h2", {}, `Choose a ${TASK}`), html("p", {}, `Click a ${TASK} anywhere, or search for one above and press Enter. In the table, the map, the tree and the matrix, arrow keys select the next ${TASK}. Escape clears the search, then the choice.`));
    return;
  }
  const task = anyTask(state.task);
  panel.replaceChildren(html("h2", { class: "name", style: `--c: ${look(state.task)[1]}` }, state.task), html("p", {}, task.category));
  for (const run of runs) {
    const own = findTask(run, state.task);
    if (several) panel.append(html("h2", {}, run.name));
    if (own) panel.append(...about(run, own));
    else panel.append(html("p", {}, `This run has no such ${TASK}.`));
  }
}

const panelWidth = () => Math.min(460, byId("panel").clientWidth - 34);

function about(run, task) {
  const number = run.number.get(task.name);
  return [
    ...task.scores.map((score) => html("div", {}, html("h3", {}, `${score.metric} ${terms.on} ${score.split}: ${isRate(score) ? per(score.score) : score.score.toFixed(1)}${Object.entries(score.baselines).map(([name, value]) => `; ${name} ${per(value)}`).join("")}`), isRate(score) ? bar(score) : null)),
    ...films(task),
    ...settling(task),
    ...Object.entries(task.adapted ? {} : task.curves).map(([name, points]) => lineChart(name, [{ name, colour: runColour(runs.indexOf(run)), points }], { width: panelWidth() })),
    html("h3", {}, state.layer === COMMON ? `Skills, mean over ${count(run.groups.length, "group")} of layers` : `Skills in ${run.groups[state.layer]?.name ?? "a layer that this run lacks"}`),
    skillTable(run, number),
    html("h3", {}, "Mixing weights by layer (rows, the first on top) and skill (columns)"), byLayer(run, number),
    html("h3", {}, `Nearest ${TASK}s (correlation, all layers)`),
    html("ul", {}, ...task.nearest.map(([other, value]) => html("li", {}, taskButton(run.tasks[other].name), ` ${value.toFixed(2)}`))),
    ...answers(task),
  ];
}

/** The adaptation of a task: scores over steps, and a slider that moves the task on the map. */
function settling(task) {
  if (!task.adapted) return [];
  const now = state.record ?? task.kept;
  const moment = html("output", {}, `step ${task.steps[now]}${now === task.kept ? " (kept)" : ""}`);
  const slider = html("input", { type: "range", id: "record", min: 0, max: task.steps.length - 1, value: now, "aria-valuetext": `step ${task.steps[now]}`, oninput: (event) => {
    state.record = Number(event.target.value);
    moment.textContent = `step ${task.steps[state.record]}${state.record === task.kept ? " (kept)" : ""}`;
    event.target.setAttribute("aria-valuetext", moment.textContent);
    sides(byId("maps"), drawMap);
  } });
  return [html("h3", {}, "Its adaptation: score on development rows"), lineChart("score", [{ name: "score", colour: "var(--run0)", points: task.curves.score }], { width: panelWidth(), marked: task.steps[task.kept] }),
    html("label", { for: "record" }, "Its position on the map: ", moment), html("div", {}, slider)];
}

function skillTable(run, number) {
  const own = state.layer === COMMON ? run.means : run.weights;
  const changes = run.ablation?.changes[number];
  const head = html("tr", {}, html("th", { scope: "col" }, "skill"), html("th", { scope: "col", colspan: 2 }, "weight"), changes ? html("th", { scope: "col", colspan: 2 }, `${run.ablation.quantity} without it`) : null);
  const largest = run.ablation ? largestChange(run) : 1;
  return html("table", { class: "weights" }, html("thead", {}, head), html("tbody", {}, ...Array.from({ length: run.nSkills }, (_, skill) => {
    const value = weight(run, number, skill);
    const row = html("tr", {}, html("th", { scope: "row" }, String(skill)), html("td", {}, value.toFixed(3)),
      html("td", { style: "width: 30%" }, html("div", { class: "bar", style: "min-width: 40px" }, html("span", { style: `width: ${Math.max(0, Math.min(100, (100 * value) / own.high))}%` }))));
    if (changes) {
      const worse = run.ablation.lessIsWorse ? changes[skill] < 0 : changes[skill] > 0;
      row.append(html("td", {}, signed(changes[skill])), html("td", { style: "width: 25%" }, html("div", { class: "bar", style: "min-width: 40px" }, html("span", { class: worse ? "worse" : null, style: `width: ${(100 * Math.abs(changes[skill])) / largest}%` }))));
    }
    return row;
  })));
}

function byLayer(run, number) {
  const row = Math.max(3, Math.min(12, Math.floor(360 / run.groups.length))), cell = Math.max(3, Math.min(22, Math.floor(240 / run.nSkills)));
  const canvas = cells(run.groups.length, run.nSkills, cell, row, (group, skill) => between(CIVIDIS, (run.weights.at(group, number, skill) - run.weights.low) / (run.weights.high - run.weights.low)));
  fill(canvas, { role: "img", "aria-label": `Weights of ${run.groups.length} groups of layers by ${run.nSkills} skills`, onpointerleave: (event) => tip(event), onpointermove: (event) => {
    const box = canvas.getBoundingClientRect();
    const group = Math.floor((event.clientY - box.top) / row), skill = Math.floor((event.clientX - box.left) / cell);
    tip(event, run.groups[group] && `${run.groups[group].name}\nskill ${skill}: ${run.weights.at(group, number, skill).toFixed(3)}`);
  } }, []);
  const stacks = [...new Set(run.groups.map((group) => group.stack))].filter((stack) => stack);
  const sizes = stacks.map((stack) => run.groups.filter((group) => group.stack === stack).length * row);
  return html("div", { style: "display: flex; gap: 8px" }, canvas,
    stacks.length ? html("div", { style: "font-size: 11px" }, ...stacks.map((stack, place) => html("div", { style: `height: ${sizes[place]}px; border-left: 2px solid var(--line); padding-left: 6px` }, stack))) : null);
}

/** Films of a level, or the command that records one. */
function films(task) {
  if (TASK === "task") return [];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  return [html("h3", {}, "Films of evaluation episodes"), ...task.films.map(({ name, gif }) => html("details", { open: !still }, html("summary", {}, name), html("img", { src: `data:image/gif;base64,${gif}`, alt: `The policy plays an episode of ${task.name}` }))),
    task.films.length ? "" : html("p", {}, "None yet. Record one, then write this page again: ", html("code", {}, `mttl babyai film RUN --level ${task.name}`))];
}

function answers(task) {
  const found = task.answers;
  if (!found) return [];
  const list = html("ul", { class: "answers" });
  function show() {
    const wanted = found.shown.filter((row) => state.filter === "all" || row[3] === (state.filter === "right"));
    list.replaceChildren(...wanted.map(([input, answer, accepted, right]) => html("li", {}, html("div", {}, input),
      html("div", { class: `given ${right ? "right" : "wrong"}` }, answer || "(nothing)"), right ? null : html("div", {}, `accepted: ${accepted.join(" | ")}`))));
    if (!wanted.length) list.append(html("li", {}, "None."));
  }
  const choices = ["all", "right", "wrong"].map((name) => html("label", {}, html("input", { type: "radio", name: "filter", value: name, checked: state.filter === name, onchange: () => { state.filter = name; show(); } }), ` ${name}`));
  show();
  const share = `${found.n_right} of ${found.n_rows}`;
  return [html("h3", {}, `Answers on ${found.split}: ${share} are an accepted answer, compared exactly; some of each`), html("fieldset", {}, html("legend", {}, "Show"), ...choices), list];
}

/** The categories with their markers. */
function legend() {
  const first = new Map(names.map((name) => [anyTask(name).category, name]));
  const swatch = (name) => svg("svg", { viewBox: "-8 -8 16 16", width: 13, style: `display: inline-block; vertical-align: -2px; margin-right: 6px; --f: ${look(name)[0]}`, "aria-hidden": "true" }, marker(name));
  return [...first].sort().map(([category, name]) => html("li", {}, html("button", { type: "button", class: "name", "data-category": category, style: `--c: ${look(name)[1]}`, onclick: () => find(state.query === category ? "" : category) }, swatch(name), category)));
}
