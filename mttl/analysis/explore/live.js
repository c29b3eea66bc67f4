// Asking the run: only in a page that is served.

const live = { way: "task", shares: new Map(), start: "", weights: [], layers: [0, 0], found: null, example: 0 };
const OWN = "nothing: one row for all layers";

function liveTask() {
  return data.live.tasks.find((task) => task.name === byId("live-task").value);
}

/** What is mixed begins as the row of the task. */
function restart() {
  const task = liveTask();
  live.shares = new Map([[task.name, 1]]);
  [live.start, live.weights] = [task.name, [...task.row]];
}

/** The task that is chosen elsewhere on the page is the one that is asked. */
function follow(name) {
  if (!(data.live.tasks ?? []).some((task) => task.name === name)) return;
  byId("live-task").value = name;
  changeTask();
}

function changeTask() {
  const task = liveTask();
  if (live.way === "task" || ![...live.shares.keys(), live.start].every((name) => !name || task.mixes.includes(name))) restart();
  if (task.unmixed) live.way = "task";
  for (const choice of document.querySelectorAll("#live-ways input")) {
    choice.checked = choice.value === live.way;
    choice.disabled = Boolean(task.unmixed) && choice.value !== "task";
  }
  byId("live-example").hidden = !examples(task).length;
  drawMix();
}

function examples(task) {
  const shown = findTask(runs[0], task.name)?.answers?.shown ?? [];
  return shown.map((row) => row[0]).filter((input) => input.startsWith(task.prompt_prefix) && !input.endsWith("…")).map((input) => input.slice(task.prompt_prefix.length));
}

function slider(id, label, value, low, high, change, more = null) {
  const shown = html("output", { for: id }, value.toFixed(2));
  return html("div", { class: "weight" }, html("label", { for: id }, label),
    html("input", { type: "range", id, min: low, max: high, step: 0.01, value, oninput: (event) => {
      shown.textContent = Number(event.target.value).toFixed(2);
      change(Number(event.target.value));
    } }), shown, more);
}

function options(names, chosen) {
  return names.map((name) => html("option", { value: name, selected: name === chosen }, name));
}

function drawMix() {
  const task = liveTask(), place = byId("live-mix");
  const draws = { tasks: taskSliders, skills: skillSliders };
  place.replaceChildren(...(draws[live.way] ? draws[live.way](task) : [task.unmixed ? html("p", {}, task.unmixed) : "",
    task.options.length ? html("p", {}, `The answer is the likeliest of: ${task.options.join(" | ")}`) : ""]));
}

function taskSliders(task) {
  const free = task.mixes.filter((name) => !live.shares.has(name));
  const change = (action) => { action(); drawMix(); };
  return [
    html("p", {}, "Rows of tasks, layer by layer, in these shares (divided by their sum). The question is still asked in the form of the task above."),
    html("div", { class: "weights-of" }, ...[...live.shares].map(([name, share], number) => slider(`share-${number}`, name, share, 0, 1, (value) => live.shares.set(name, value),
      live.shares.size < 2 ? null : html("button", { type: "button", "aria-label": `Take ${name} out`, onclick: () => change(() => live.shares.delete(name)) }, "✕")))),
    free.length ? html("div", {}, html("label", { for: "live-add" }, "Add a task"), html("select", { id: "live-add", onchange: (event) => { const { value } = event.target; change(() => live.shares.set(value, 0.5)); byId("live-add")?.focus(); } }, html("option", { value: "" }, "–"), ...options(free))) : "",
  ];
}

function skillSliders(task) {
  const rows = data.live.tasks.flatMap((other) => other.row), [low, high] = [Math.min(0, ...rows), Math.max(1, ...rows)];
  const start = html("select", { id: "live-start", onchange: (event) => {
    live.start = event.target.value;
    live.weights = live.start ? [...data.live.tasks.find((other) => other.name === live.start).row] : live.weights.map(() => 0);
    drawMix();
    byId("live-start").focus();
  } }, html("option", { value: "" }, OWN), ...options(task.mixes.filter((name) => data.live.tasks.some((other) => other.name === name)), live.start));
  return [
    html("div", {}, html("label", { for: "live-start" }, "Start from the row of"), start),
    html("p", {}, live.start ? "Means over layers whose skills are matched. What you move by, every layer's weight moves by; unmoved, the answer is the task's." : "These weights are the row of every group of layers whose skills a task's row mixes."),
    html("div", { class: "weights-of" }, ...live.weights.map((value, skill) => slider(`weight-${skill}`, `skill ${skill}`, value, low, high, (moved) => { live.weights[skill] = moved; }))),
  ];
}

/** How a question is answered, in words. */
function told() {
  if (live.way === "tasks") return [...live.shares].map(([name, share]) => `${share.toFixed(2)} ${name}`).join(" + ");
  if (live.way === "skills") return `skills ${live.weights.map((value) => value.toFixed(2)).join(" ")}${live.start ? ` from ${live.start}` : ""}`;
  return "its own skills";
}

async function ask(event) {
  event.preventDefault();
  const place = byId("live-answer"), button = byId("live-ask");
  if (button.getAttribute("aria-busy") === "true") return;
  const asked = { task: byId("live-task").value, text: byId("live-text").value }, how = told();
  if (live.way === "tasks") asked.tasks = Object.fromEntries(live.shares);
  if (live.way === "skills") Object.assign(asked, { skills: live.weights, start: live.start || null });
  button.setAttribute("aria-busy", "true");
  place.replaceChildren(html("p", {}, "Asking …"));
  const [found, problem] = await answered(asked);
  button.setAttribute("aria-busy", "false");
  live.found = found;
  drawTokens();
  if (problem) return place.replaceChildren(html("p", { class: "problem" }, problem));
  const known = findTask(runs[0], asked.task)?.answers?.shown.find((row) => row[0] === found.read);
  const right = known && known[2].includes(found.answer);
  place.replaceChildren(html("div", { class: `given${known ? (right ? " right" : " wrong") : ""}` }, found.answer || "(nothing)"),
    html("p", {}, `${known && !right ? `Accepted: ${known[2].join(" | ")}. ` : ""}The run read “${found.read}” and answered with ${how}.`));
  const past = byId("live-past");
  past.hidden = false;
  past.querySelector("ol").prepend(html("li", {}, `${found.read} → `, html("b", {}, found.answer || "(nothing)"), ` (${how})`));
  for (const old of [...past.querySelectorAll("li")].slice(20)) old.remove();
}

/** What the run answers, or why it does not. */
async function answered(asked) {
  try {
    const reply = await fetch("live", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
    const found = await reply.json();
    return reply.ok ? [found, null] : [null, `Not answered: ${found.error.message}.`];
  } catch {
    return [null, "The server does not answer. If it has ended, start it again with mttl explore RUN --serve."];
  }
}

function drawTokens() {
  const place = byId("live-tokens"), tokens = live.found?.tokens;
  if (!live.found) return place.replaceChildren();
  if (!tokens) return place.replaceChildren(html("p", {}, "Tokens have no colours: this run has no router of tokens. Its skills are mixed for a whole question."));
  place.replaceChildren(drawSide(tokens, 0, "What the run read", tokens.prompt, 0), drawSide(tokens, 1, "What it answered", tokens.answer, tokens.prompt.length));
}

/** The tokens of one side, coloured by the experts that took them in a layer. */
function drawSide(tokens, side, title, texts, first) {
  const layers = tokens.layers.filter((layer) => texts.some((_, place) => layer.chose[first + place].length));
  if (!layers.length) return html("p", {}, `${title}: no layer chose experts for it.`);
  const number = Math.min(live.layers[side], layers.length - 1), layer = layers[number];
  const choice = html("select", { id: `live-layer-${side}`, onchange: (event) => { live.layers[side] = Number(event.target.value); drawTokens(); byId(`live-layer-${side}`).focus(); } },
    ...layers.map(({ name }, place) => html("option", { value: place, selected: place === number }, name)));
  const counts = new Map();
  const list = html("ol", { class: "tokens" }, ...texts.map((text, place) => {
    const chose = layer.chose[first + place], all = chose.length === layer.experts;
    for (const expert of chose) counts.set(expert, (counts.get(expert) ?? 0) + 1);
    return html("li", { style: chose.length && !all ? `--h: ${hue(chose[0])}` : null, class: chose.length && !all ? "tinted" : null }, text,
      html("small", {}, chose.length ? (all ? "all" : chose.join("+")) : "–"));
  }));
  const used = [...counts].sort(([one], [other]) => one - other);
  return html("div", {}, html("h3", {}, title), html("label", { for: `live-layer-${side}` }, "by the experts of "), choice, list,
    html("p", {}, `Under each token the experts that took it; its colour is the first's. ${used.map(([expert, n]) => `Expert ${expert}: ${n}`).join(", ")}.`));
}

const hue = (expert) => Math.round(expert * 137.5) % 360;

function startLive() {
  if (data.live.problem) {
    byId("live-form").hidden = true;
    byId("live-problem").hidden = false;
    byId("live-problem").textContent = data.live.problem;
    return;
  }
  byId("live-task").append(...options(data.live.tasks.map((task) => task.name)));
  byId("live-task").addEventListener("change", (event) => {
    changeTask();
    if (names.includes(event.target.value)) select(event.target.value);
  });
  byId("live-ways").addEventListener("change", (event) => { live.way = event.target.value; drawMix(); });
  byId("live-example").addEventListener("click", () => {
    const found = examples(liveTask());
    byId("live-text").value = found[live.example++ % found.length];
  });
  byId("live-text").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) ask(event); });
  byId("live-form").addEventListener("submit", ask);
  restart();
  changeTask();
}
