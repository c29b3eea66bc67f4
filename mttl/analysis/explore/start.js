// Controls and start.

function draw() {
  drawScores();
  drawPictures();
  drawPanel();
}

function drawPictures() {
  sides(byId("maps"), drawMap);
  sides(byId("matrices"), drawMatrix);
  sides(byId("trees"), drawTree);
  byId("found").textContent = `${names.filter(visible).length} of ${names.length} tasks`;
}

/** Select a task; after a key press the same part of the page keeps the focus. */
function select(name, place = null, side = 0) {
  state.task = name;
  state.record = null;
  if (!visible(name)) find("");
  draw();
  if (data.live) follow(name);
  const jump = byId("jump");
  jump.hidden = false;
  jump.textContent = `${name} ↓`;
  if (place) byId(place).querySelectorAll("[tabindex]")[side]?.focus({ preventScroll: true });
  for (const id of ["scores", "trees"]) {
    const box = byId(id).closest(".scroll") ?? byId(id).querySelector(".scroll");
    const own = box?.querySelector(".chosen");
    if (!own) continue;
    const [outer, inner] = [box.getBoundingClientRect(), own.getBoundingClientRect()];
    if (inner.top < outer.top + 24 || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 2;
  }
}

function find(query) {
  byId("search").value = query;
  state.query = query;
  drawScores();
  drawPictures();
}

function sortBy(key) {
  state.down = state.sort === key ? !state.down : true;
  state.sort = key;
  drawScores();
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
  const effects = run.ablation ? "Next to the weights: the change of each task without the skill; red is worse. " : "Run mttl ablate to add the change of each task without each skill. ";
  byId("skills-what").textContent = [agreed ?? "", effects, ...runs.map((other) => other.note)].join(" ");
  sides(byId("matrices"), drawMatrix);
  drawPanel();
}

function start() {
  byId("summary").textContent = runs.map((run) => `${several ? `${run.name}: ` : ""}${run.nTasks} tasks, ${run.nSkills} skills, ${run.groups.length} groups of layers${run.tasks.length > run.nTasks ? `, ${run.tasks.length - run.nTasks} adapted tasks` : ""}`).join(" · ");
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
