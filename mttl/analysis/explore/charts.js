// Scores.

function bar(score) {
  const width = Math.max(0, Math.min(100, 100 * score.score));
  const known = Object.entries(score.baselines);
  const label = [`${per(score.score)}`, ...known.map(([name, value]) => `${name} ${per(value)}`)].join("; ");
  return html("div", { class: "bar", role: "img", "aria-label": label, onpointermove: (event) => tip(event, `${score.metric} on ${score.split}: ${label}`), onpointerleave: (event) => tip(event) },
    html("span", { style: `width: ${width}%` }),
    ...known.map(([name, value]) => html("i", { class: name, style: `left: ${Math.max(0, Math.min(99, 100 * value))}%` })));
}

/** The number of the last column: the difference to the best baseline, or the steps of an episode. */
function last(task) {
  const [score, steps] = task?.scores ?? [];
  if (TASK === "level") return steps?.score ?? null;
  return score && Object.keys(score.baselines).length ? 100 * (score.score - Math.max(0, ...Object.values(score.baselines))) : null;
}

function lastCell(task) {
  const value = last(task), sign = TASK === "task" && value > 0 ? "+" : "";
  return html("td", { class: "number" }, value === null ? "" : `${sign}${value.toFixed(1)}`);
}

function sorted(shown) {
  const score = (name) => findTask(runs[0], name)?.scores[0];
  const keys = {
    name: (name) => name, category: (name) => anyTask(name).category,
    score: (name) => -(score(name)?.score ?? -2), last: (name) => -(last(findTask(runs[0], name)) ?? -200),
  };
  if (!keys[state.sort]) return shown;
  const key = keys[state.sort];
  const found = [...shown].sort((one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : 0));
  return state.down ? found : found.reverse();
}

function drawScores() {
  const sorts = (key, text, columns = 1) => html("th", { scope: "col", colspan: columns, "aria-sort": state.sort === key ? (state.down ? "descending" : "ascending") : null },
    html("button", { type: "button", "data-key": `sort-${key}`, onclick: () => sortBy(key) }, text));
  const split = runs[0].tasks[0].scores[0]?.split ?? "";
  const head = html("tr", {}, sorts("name", TASK), sorts("category", terms.category),
    ...runs.flatMap((run, number) => [
      number ? html("th", { scope: "col", colspan: 2 }, run.name) : sorts("score", several ? run.name : split, 2),
    ]), several ? null : sorts("last", terms.last));
  const shown = sorted(names.filter(visible)), rows = shown.map((name) => html("tr", { class: name === state.task ? "chosen" : null },
    html("th", { scope: "row" }, taskButton(name, { tabindex: -1 })), html("td", {}, anyTask(name).category),
    ...runs.flatMap((run) => {
      const score = findTask(run, name)?.scores[0];
      return score ? [html("td", {}, bar(score)), html("td", { class: "number" }, per(score.score))] : [html("td"), html("td")];
    }), several ? null : lastCell(findTask(runs[0], name))));
  const means = runs.every((run) => !run.mean.length) ? "" : html("tr", {}, html("th", { scope: "row" }, "mean"), html("td"),
    ...runs.flatMap((run) => (run.mean[0] ? [html("td", {}, bar(run.mean[0])), html("td", { class: "number" }, per(run.mean[0].score))] : [html("td"), html("td")])), several ? null : lastCell({ scores: runs[0].mean }));
  byId("scores").replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, means, ...rows)));
  byId("scores").onkeydown = (event) => climb(event, shown);
}

// Lines over steps.

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((value) => value >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(8)));
  return found;
}

/** A chart of lines: { name, colour, dash, points: [steps, values] }; losses that fall by a factor of 20 have a logarithmic axis. */
function lineChart(title, lines, { width, marked = null }) {
  const [height, left, bottom, top] = [170, 46, 32, 20];
  const steps = lines.flatMap((line) => line.points[0]), all = lines.flatMap((line) => line.points[1]);
  const logarithmic = title.includes("loss") && Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) > 20;
  const scaled = logarithmic ? Math.log10 : (value) => value;
  let [low, high] = [Math.min(...all), Math.max(...all)].map(scaled);
  if (!logarithmic && low > 0 && low < high / 2) low = 0;
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const [first, last] = [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1)];
  const x = (step) => left + ((step - first) / (last - first)) * (width - left - 14);
  const y = (value) => height - bottom - ((scaled(value) - low) / (high - low)) * (height - bottom - top);
  const across = ticks(first, last, 4), up = logarithmic ? ticks(low, high, 3).map((power) => 10 ** power) : ticks(low, high, 4);
  const ranges = lines.map((line) => `${line.name}: from ${line.points[1][0]} to ${line.points[1].at(-1)}`).join("; ");
  return html("figure", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": `${title}. ${ranges}` },
    svg("text", { x: left, y: 12, class: "soft" }, title),
    ...up.map((value) => svg("g", {}, svg("line", { class: "axis", x1: left, x2: width - 14, y1: y(value), y2: y(value) }),
      svg("text", { class: "soft", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))))),
    ...across.map((value) => svg("text", { class: "soft", x: x(value), y: height - bottom + 14, "text-anchor": "middle" }, value.toLocaleString("en"))),
    svg("text", { class: "soft", x: width - 14, y: height - 4, "text-anchor": "end" }, "step"),
    ...lines.map((line) => svg("path", { d: line.points[0].map((step, number) => `${number ? "L" : "M"}${x(step).toFixed(1)} ${y(line.points[1][number]).toFixed(1)}`).join(""), fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-dasharray": line.dash ?? null })),
    ...lines.flatMap((line) => (line.points[0].length < 40 ? line.points[0].map((step, number) => svg("circle", { cx: x(step), cy: y(line.points[1][number]), r: 2.5, style: `--f: ${line.colour}` })) : [])),
    marked === null ? null : svg("line", { x1: x(marked), x2: x(marked), y1: top, y2: height - bottom, stroke: "var(--mark)" })));
}

const runColour = (number) => `var(--run${number % 4})`;
const runDash = (number) => [null, "7 4", "2 3"][Math.floor(number / 4) % 3];  // colours repeat beyond four runs
const runKey = (number) => ["━", "╍", "┈"][Math.floor(number / 4) % 3];

function drawCurves() {
  const kinds = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))], room = byId("curves").clientWidth;
  const width = Math.floor(room / Math.max(1, Math.round(room / 400))) - 12;
  const legend = several ? html("p", { style: "flex-basis: 100%; max-width: none" }, ...runs.map((run, number) => html("span", { style: `color: ${runColour(number)}; margin-right: 14px` }, `${runKey(number)} ${run.name}`))) : "";
  byId("curves").replaceChildren(legend, ...kinds.map((kind) => lineChart(kind,
    runs.flatMap((run, number) => (run.curves[kind] ? [{ name: run.name, colour: runColour(number), dash: runDash(number), points: run.curves[kind] }] : [])), { width })));
  if (!kinds.length) byId("curves").append(html("p", {}, "The run has no metrics.csv."));
}

// The map.

function drawMap(run) {
  const [width, height, edge] = [Math.max(300, Math.min(560, byId("maps").clientWidth)), 400, 26];
  const now = run.places[stepOf(run)];
  const adapted = run.tasks.slice(run.nTasks);
  const all = [...run.places.flat(), ...adapted.flatMap((task) => task.trail)];
  const range = [0, 1].map((axis) => [Math.min(...all.map((point) => point[axis])), Math.max(...all.map((point) => point[axis]))]);
  const at = (point) => [0, 1].map((axis) => {
    const [low, high] = range[axis];
    const share = high > low ? (point[axis] - low) / (high - low) : 0.5;
    return axis ? height - edge - share * (height - 2 * edge) : edge + share * (width - 2 * edge);
  });
  const spots = run.tasks.map((task, number) => at(number < run.nTasks ? now[number] : task.trail[state.task === task.name && state.record !== null ? state.record : task.kept]));
  const chosen = run.number.get(state.task);
  const near = chosen === undefined ? [] : run.tasks[chosen].nearest.map(([other]) => other);
  const matching = names.filter(visible);
  const named = new Set([chosen, ...near, ...matching.map((name) => run.number.get(name))]);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, "data-key": `maps${runs.indexOf(run)}`, role: "group", "aria-label": `Map of ${count(run.tasks.length, TASK)} of ${run.name}. Arrow keys go to the next ${TASK} in a direction.`, onkeydown: (event) => walk(event, run, spots) },
    svg("text", { class: "soft", x: width - 4, y: height - 4, "text-anchor": "end" }, `component 1 (${(100 * run.shares[0]).toFixed(0)} %)`),
    svg("text", { class: "soft", x: 4, y: 12 }, `component 2 (${(100 * run.shares[1]).toFixed(0)} %)`),
    ...adapted.map((task) => {
      const way = task.trail.map(at);
      const faded = visible(task.name) ? "" : " faded";
      return svg("path", { class: `trail${faded}`, d: way.map(([x, y], number) => `${number ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") });
    }),
    ...run.tasks.map((task, number) => {
      const [x, y] = spots[number];
      const classes = ["task", "moves", number === chosen ? "chosen" : "", visible(task.name) ? "" : "faded"].join(" ");
      return svg("g", { class: classes, "data-task": task.name, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, style: `--f: ${look(task.name)[0]}; --c: ${look(task.name)[1]}`,
        onclick: () => select(task.name), onpointermove: (event) => tip(event, `${task.name}\n${task.category}`), onpointerleave: (event) => tip(event) }, marker(task.name));
    }),
    ...adapted.map((task) => svg("circle", { class: "start", cx: at(task.trail[0])[0], cy: at(task.trail[0])[1], r: 4, "pointer-events": "none" })),
    ...placed([...named].filter((number) => number !== undefined).map((number) => [run.tasks[number].name, ...spots[number]]), spots, width, height, 1 + near.length)
      .map(([name, x, y, anchor]) => svg("text", { class: `task${name === state.task ? " chosen" : ""}`, "data-task": name, x, y, "text-anchor": anchor, style: `--c: ${look(name)[1]}`, "pointer-events": "none" }, name)));
  return drawn;
}

/** Labels next to their points, without those that have no room; the first may cover other points. */
function placed(labels, spots, width, height, nFirst) {
  const boxes = [[0, 130, 12], [width - 130, width, height - 4]];  // names of the axes
  const found = [], points = spots.map(([x, y]) => [x - 6, x + 6, y + 4]);
  for (const [name, x, y] of labels) {
    const long = 7 * name.length;
    const places = [0, -13, 13, -26, 26].flatMap((down) => [[x + 9, y + 4 + down, "start"], [x - 9, y + 4 + down, "end"]]).filter(([left, base, anchor]) => {
      const start = anchor === "start" ? left : left - long;
      return start >= 0 && start + long <= width && base > 12 && base < height;
    });
    const free = ([left, base, anchor], taken) => {
      const start = anchor === "start" ? left : left - long;
      return !taken.some((box) => start < box[1] && start + long > box[0] && Math.abs(base - box[2]) < 12);
    };
    const best = places.find((place) => free(place, [...boxes, ...points])) ?? (found.length < nFirst || labels.length <= 12 ? places.find((place) => free(place, boxes)) : null);
    if (!best) continue;
    const [left, base, anchor] = best, start = anchor === "start" ? left : left - long;
    boxes.push([start, start + long, base]);
    found.push([name, left, base, anchor]);
  }
  return found;
}

/** Arrow keys on a map select the nearest task in their direction. */
function walk(event, run, spots) {
  const directions = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const towards = directions[event.key];
  if (!towards) return;
  event.preventDefault();
  const from = spots[run.number.get(state.task) ?? 0];
  let [best, found] = [Infinity, null];
  spots.forEach(([x, y], number) => {
    const [dx, dy] = [x - from[0], y - from[1]];
    const ahead = dx * towards[0] + dy * towards[1], aside = Math.abs(dx * towards[1]) + Math.abs(dy * towards[0]);
    if (ahead > 0.5 && ahead + 2 * aside < best) [best, found] = [ahead + 2 * aside, number];
  });
  if (state.task === null) found = 0;
  if (found !== null) select(run.tasks[found].name);
}

// Pictures with a row per task: the tree and the matrices.

/** The up and down keys select a neighbouring row. */
function climb(event, shown) {
  const aside = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, End: Infinity, Home: -Infinity }[event.key];
  if (!aside || !shown.length) return;
  event.preventDefault();
  const now = shown.indexOf(state.task);
  select(shown[now < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, now + aside))]);
}

function drawTree(run) {
  const row = 16, reach = 1.04 * Math.max(...run.joints.flatMap(([, distances]) => distances), 1e-6);
  const shown = run.order.map((number) => run.tasks[number].name);
  const long = Math.max(...shown.map((name) => name.length));
  const tree = byId("trees").clientWidth < 500 ? 90 : 220, width = tree + 20 + 7 * long;
  const x = (distance) => tree - (distance / reach) * (tree - 4), y = (place) => row * (place + 0.5), bottom = row * shown.length + 4;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${bottom + 32}`, width, tabindex: 0, role: "group", "aria-label": `Tree of ${count(shown.length, TASK)} of ${run.name}. Up and down go from ${TASK} to ${TASK}.`, "data-key": `trees${runs.indexOf(run)}`, onkeydown: (event) => climb(event, shown) },
    ...run.joints.map(([places, distances]) => svg("path", { class: "branch", d: places.map((place, number) => `${number ? "L" : "M"}${x(distances[number]).toFixed(1)} ${y(place).toFixed(1)}`).join("") })),
    ...shown.map((name, place) => svg("g", { class: `task${name === state.task ? " chosen" : ""}${visible(name) ? "" : " faded"}`, style: `--f: ${look(name)[0]}; --c: ${look(name)[1]}`, "data-task": name, onclick: () => select(name) },
      marker(name, { transform: `translate(${tree + 6} ${y(place)}) scale(0.7)` }), svg("text", { class: "task", x: tree + 14, y: y(place) + 4 }, name))),
    ...ticks(0, reach, 3).map((value) => svg("text", { class: "soft", x: x(value), y: bottom + 12, "text-anchor": "middle" }, String(value))),
    svg("text", { class: "soft", x: tree / 2, y: bottom + 27, "text-anchor": "middle" }, "1 − correlation"));
  drawn.style.maxWidth = "none";
  return html("div", { class: "scroll" }, drawn);
}

/** Cells on a canvas: columns are skills. */
function cells(rows, nSkills, cell, row, colour) {
  const canvas = html("canvas");
  const [width, height, ratio] = [cell * nSkills, row * rows, window.devicePixelRatio || 1];
  [canvas.width, canvas.height] = [width * ratio, Math.max(1, height * ratio)];
  canvas.style.cssText = `width: ${width}px; height: ${height}px; max-width: none`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const gap = cell > 6 && row > 6 ? 1 : 0;
  for (let place = 0; place < rows; place++) {
    for (let skill = 0; skill < nSkills; skill++) {
      pen.fillStyle = colour(place, skill);
      pen.fillRect(skill * cell, place * row, cell - gap, row - gap);
    }
  }
  return canvas;
}

function largestChange(run) {
  return Math.max(1e-6, ...run.ablation.changes.flat().map(Math.abs));
}

function drawMatrix(run) {
  const shown = [...run.order, ...run.tasks.keys()].filter((number, place) => place < run.nTasks || number >= run.nTasks).map((number) => run.tasks[number].name).filter(visible);
  const numbers = shown.map((name) => run.number.get(name));
  const labelled = 8 + 7 * Math.max(0, ...shown.map((name) => name.length)), n = run.ablation ? 2 : 1;
  const wide = byId("matrices").clientWidth, room = (several ? Math.min(620, wide) : wide) - Math.min(labelled, 0.4 * window.innerWidth) - 30;
  const row = 17, cell = Math.max(run.nSkills > 24 ? 3 : 12, Math.min(44, Math.floor(room / n / run.nSkills)));
  const own = state.layer === COMMON ? run.means : run.weights;
  const pictures = [["mixing weight", cells(shown.length, run.nSkills, cell, row, (place, skill) => between(CIVIDIS, (weight(run, numbers[place], skill) - own.low) / (own.high - own.low))),
    (place, skill) => weight(run, numbers[place], skill).toFixed(3)]];
  if (run.ablation) {
    const largest = largestChange(run), { changes, lessIsWorse, quantity } = run.ablation;
    const change = (place, skill) => changes[numbers[place]]?.[skill];
    pictures.push([`${quantity} without it`, cells(shown.length, run.nSkills, cell, row, (place, skill) => (change(place, skill) === undefined ? "transparent" : aroundZero(change(place, skill), largest, lessIsWorse))),
      (place, skill) => (change(place, skill) === undefined ? "not measured" : signed(change(place, skill)))]);
  }
  const labels = shown.map((name) => html("div", { class: `name task${name === state.task ? " chosen" : ""}`, "data-task": name, title: name, style: `--c: ${look(name)[1]}; height: ${row}px; line-height: ${row}px`, onclick: () => select(name) }, name));
  const every = Math.ceil(22 / cell);
  const columns = pictures.map(([title, canvas, value]) => {
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor((event.clientY - box.top) / row), Math.floor((event.clientX - box.left) / cell)];
    };
    fill(canvas, { role: "img", "aria-label": `${title}, ${count(shown.length, TASK)} by ${run.nSkills} skills; the chosen ${TASK} lists the same numbers`, "data-title": title,
      onpointermove: (event) => { const [task, skill] = place(event); tip(event, shown[task] && `${shown[task]}\nskill ${skill}: ${title} ${value(task, skill)}`); },
      onpointerleave: (event) => tip(event), onclick: (event) => { const name = shown[place(event)[0]]; if (name) select(name); } }, []);
    return html("div", {}, html("div", { class: "head" }, html("div", {}, `${title}, by skill`),
      html("div", { style: `display: flex; width: ${cell * run.nSkills}px`, "aria-hidden": "true" },
        ...Array.from({ length: run.nSkills }, (_, skill) => html("span", { style: `width: ${cell}px; text-align: center` }, skill % every ? "" : String(skill))))), canvas);
  });
  const marked = shown.indexOf(state.task);
  const band = marked < 0 ? null : html("div", { class: "band", style: `top: ${36 + marked * row}px; height: ${row}px` });
  return html("div", { class: "scroll", tabindex: 0, "data-key": `matrices${runs.indexOf(run)}`, role: "group", "aria-label": `Weights of skills in ${TASK}s of ${run.name}. Up and down go from ${TASK} to ${TASK}.`, onkeydown: (event) => climb(event, shown) },
    html("div", { class: "matrix" }, html("div", { class: "labels" }, html("div", { class: "head" }, TASK), ...labels), ...columns, band));
}
