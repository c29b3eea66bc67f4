// Controls and start.

function draw() {
  redraw(() => {
    drawScores();
    drawPictures();
    drawPanel();
  });
}

function drawPictures() {
  sides(byId("maps"), drawMap);
  sides(byId("matrices"), drawMatrix);
  sides(byId("trees"), drawTree);
  byId("found").textContent = `${names.filter(visible).length} of ${count(names.length, TASK)}`;
}

/** Select a task, or none. */
function select(name) {
  state.task = name;
  state.record = null;
  if (name !== null && !visible(name)) find("");
  draw();
  byId("jump").hidden = name === null;
  if (name === null) return;
  if (data.live) follow(name);
  byId("jump").textContent = `${name} ↓`;
  reveal(".chosen");
}

/** Scroll every box to an element that it hides. */
function reveal(selector) {
  for (const box of document.querySelectorAll("#views .scroll")) {
    const own = box.querySelector(selector);
    if (!own) continue;
    const [outer, inner] = [box.getBoundingClientRect(), own.getBoundingClientRect()];
    if (inner.top < outer.top + 36 || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 2;
  }
}

/** Escape clears the search; if it is empty, the choice. */
function clear(event) {
  if (event.key !== "Escape") return;
  tip(event);
  if (state.query) find("");
  else if (state.task !== null) select(null);
}

function find(query) {
  byId("search").value = query;
  state.query = query;
  drawScores();
  drawPictures();
  if (query) reveal(".task:not(.faded)");
}

function sortBy(key) {
  state.down = state.sort === key ? !state.down : true;
  state.sort = key;
  redraw(drawScores);
}

/** Show a step of training. */
function moveTo(step) {
  const slider = byId("step");
  slider.value = step;
  state.step = slider.max > 0 ? step / slider.max : 1;
  const longest = runs.reduce((one, other) => (other.steps.length > one.steps.length ? other : one));
  byId("moment").textContent = longest.steps[stepOf(longest)];
  slider.setAttribute("aria-valuetext", byId("moment").textContent);
  sides(byId("maps"), drawMap);
  if (state.layer === COMMON) {
    sides(byId("matrices"), drawMatrix);
    drawPanel();
  }
}

let timer = null;
function play() {
  const slider = byId("step");
  const stop = () => {
    clearInterval(timer);
    timer = null;
    byId("play").textContent = "Play";
  };
  if (timer) return stop();
  byId("play").textContent = "Stop";
  moveTo(0);
  timer = setInterval(() => {
    if (Number(slider.value) >= Number(slider.max)) stop();
    else moveTo(Number(slider.value) + 1);
  }, 300);
}

function chooseLayer(layer) {
  state.layer = layer;
  const run = runs[0];
  const agreed = run.agreement && `Groups of layers number their skills independently, so skills are matched by their use: matched skills of two groups have a correlation of ${run.agreement[0].toFixed(2)} on average (${run.agreement[1].toFixed(2)} by chance). `;
  const effects = run.ablation ? "Next to the weights: the change of each task without the skill; red is worse. " : TASK === "level" ? "" : "Run mttl ablate to add the change of each task without each skill. ";
  byId("skills-what").textContent = ["Brighter cells are larger weights. ", agreed ?? "", effects, ...runs.map((other) => other.note)].join(" ");
  sides(byId("matrices"), drawMatrix);
  drawPanel();
}

function start() {
  byId("summary").textContent = runs.map((run) => `${several ? `${run.name}: ` : ""}${count(run.nTasks, TASK)}, ${count(run.nSkills, "skill")}, ${count(run.groups.length, "group")} of layers${run.tasks.length > run.nTasks ? `, ${count(run.tasks.length - run.nTasks, "adapted task")}` : ""}`).join(" · ");
  const choice = byId("layer");
  choice.append(html("option", { value: COMMON }, runs[0].groups.length > 1 ? "mean over all, skills matched" : runs[0].groups[0].name));
  const stacks = new Map();
  runs[0].groups.forEach(({ name, stack }, number) => {
    if (runs[0].groups.length < 2) return;
    if (stack && !stacks.has(stack)) {
      stacks.set(stack, html("optgroup", { label: stack }));
      choice.append(stacks.get(stack));
    }
    (stacks.get(stack) ?? choice).append(html("option", { value: number }, name));
  });
  choice.addEventListener("change", () => chooseLayer(Number(choice.value)));
  const slider = byId("step");
  slider.max = Math.max(...runs.map((run) => run.steps.length)) - 1;
  slider.addEventListener("input", () => moveTo(Number(slider.value)));
  byId("training").hidden = slider.max < 1;
  byId("play").addEventListener("click", play);
  byId("search").addEventListener("input", (event) => find(event.target.value));
  byId("controls").addEventListener("submit", (event) => {
    event.preventDefault();
    const shown = names.filter(visible);
    if (shown.length) select(shown[0]);
  });
  sides(byId("experts").querySelector(".sides"), drawExperts);
  byId("trails").hidden = runs.every((run) => run.tasks.length === run.nTasks);
  byId("legend").append(...legend());
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, light);
  document.addEventListener("keydown", clear);
  drawCurves();
  draw();
  if (data.live) startLive();
  moveTo(Number(slider.max));
  chooseLayer(COMMON);
  dark.addEventListener("change", draw);
  let [width, later] = [window.innerWidth, null];
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(later);
    later = setTimeout(() => { drawCurves(); draw(); }, 150);
  });
}

start();
