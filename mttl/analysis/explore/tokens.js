// Experts that tokens choose.

function drawExperts(run) {
  const { tokens } = run;
  if (!tokens) return null;
  byId("experts").hidden = false;
  const numbers = html("p", { role: "status" }), loads = html("div", { class: "wide" }), table = html("table");
  const choice = html("select", { "aria-label": `Layer of ${run.name}`, onchange: show }, ...tokens.layers.map((layer, number) => html("option", { value: number }, layer.name)));
  function show() {
    const layer = tokens.layers[Number(choice.value)];
    numbers.textContent = layer.numbers;
    const steps = tokens.steps.length;
    if (steps) {
      const most = Math.max(...layer.history.flat(), 1e-6), cell = Math.max(4, Math.min(20, Math.floor(700 / steps)));
      const canvas = cells(layer.experts.length, steps, cell, 16, (expert, step) => between(CIVIDIS, layer.history[expert][step] / most));
      fill(canvas, { role: "img", "aria-label": "Load of every expert over training" }, []);
      loads.replaceChildren(html("p", {}, `Load by expert (rows) and step (columns, from ${tokens.steps[0]} to ${tokens.steps.at(-1)}):`), canvas);
    }
    const head = ["expert", "load", "tokens that chose it most often (commonest previous token)", "commonest previous tokens"];
    table.replaceChildren(html("tr", {}, ...head.map((text) => html("th", { scope: "col" }, text))),
      ...layer.experts.map((expert, number) => html("tr", {}, html("th", { scope: "row" }, String(number)), ...[expert.load, expert.tokens, expert.previous].map((text) => html("td", {}, text)))));
  }
  show();
  return html("div", {}, html("p", {}, tokens.what), choice, numbers, loads, html("div", { class: "wide" }, table));
}
