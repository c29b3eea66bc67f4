"""The part of the page that shows which tokens choose which experts."""

import json
from typing import Any

import numpy as np

from mttl.analysis.tokens.token_record import TokenRecord

TEMPLATE = """
<section id="experts" style="padding: 0 20px 40px; max-width: 1100px">
  <h2>Experts that tokens choose</h2>
  <p id="experts-what"></p>
  <form style="margin: 8px 0"><label for="expert-layer">Layer</label>
    <select id="expert-layer"></select></form>
  <p id="expert-numbers" role="status"></p>
  <div id="expert-loads" role="img" aria-label="Load of every expert over training"></div>
  <table id="expert-tokens"></table>
</section>
<script type="application/json" id="expert-data">{{DATA}}</script>
<script>
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("expert-data").textContent);
  const byId = (id) => document.getElementById(id);
  const cell = (line, tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    made.style.verticalAlign = "top";
    line.append(made);
  };
  byId("experts-what").textContent = data.what;
  data.layers.forEach((layer, index) => byId("expert-layer").append(new Option(layer.name, index)));
  function show() {
    const layer = data.layers[Number(byId("expert-layer").value)];
    byId("expert-numbers").textContent = layer.numbers;
    if (data.steps.length) {
      const heights = { height: 90 + 18 * layer.experts.length, margin: { t: 10, l: 60, r: 10 } };
      Plotly.react(byId("expert-loads"), [{ type: "heatmap", x: data.steps, z: layer.history,
        colorscale: "Cividis", zmin: 0, colorbar: { title: { text: "load" } } }],
        { ...heights, xaxis: { title: { text: "step" } }, yaxis: { title: { text: "expert" },
          autorange: "reversed", dtick: 1 } }, { displayModeBar: false, responsive: true });
    }
    const table = byId("expert-tokens");
    table.replaceChildren();
    const head = document.createElement("tr");
    ["expert", "load", "tokens that chose it most (after what, most often)",
     "commonest tokens before"].forEach((text) => cell(head, "th", text));
    table.append(head);
    layer.experts.forEach((expert, index) => {
      const line = document.createElement("tr");
      cell(line, "th", index);
      [expert.load, expert.tokens, expert.previous].forEach((text) => cell(line, "td", text));
      table.append(line);
    });
  }
  byId("expert-layer").addEventListener("change", show);
  show();
})();
</script>
"""


def token_section(record: TokenRecord) -> str:
    """Return the HTML of the part; it uses the page's plotly.

    Args:
        record: What the run wrote down.
    """
    text = json.dumps(_data(record), ensure_ascii=True, allow_nan=False)
    inside = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return TEMPLATE.replace("{{DATA}}", inside)


def expert_tokens(record: TokenRecord, layer: int, expert: int, n: int) -> tuple[str, str]:
    """Return the commonest tokens of an expert, and of those before them, as text.

    Args:
        record: What the run wrote down.
        layer: Its number.
        expert: Its number.
        n: How many of each, at most.
    """
    tokens = [
        f"{quoted(token)} {share:.0%} (after {quoted(before)})"
        for token, before, share, count in zip(
            record.tokens[layer, expert],
            record.before[layer, expert],
            record.token_shares[layer, expert],
            record.token_counts[layer, expert],
            strict=True,
        )
        if count
    ]
    counts = record.previous_counts[layer, expert]
    previous = [
        quoted(token)
        for token, count in zip(record.previous[layer, expert], counts, strict=True)
        if count
    ]
    return ", ".join(tokens[:n]), ", ".join(previous[:n])


def quoted(token: str) -> str:
    """Return a token so that blanks can be seen."""
    return repr(str(token)) if not str(token).strip() or not str(token).isprintable() else token


def _data(record: TokenRecord) -> dict[str, Any]:
    loads, evenness = record.loads(), record.evenness()
    history = record.history
    layers = []
    for number, name in enumerate(record.layers):
        experts = []
        for expert, load in enumerate(loads[number]):
            tokens, previous = expert_tokens(record, number, expert, n=10)
            experts.append({"load": f"{load:.1%}", "tokens": tokens, "previous": previous})
        layers.append(
            {
                "name": name,
                "experts": experts,
                "numbers": (
                    f"Load entropy {evenness[number]:.3f} of 1; dropped "
                    f"{record.dropped[number]:.1%}. A choice has {record.expert_bits[number]:.2f} "
                    f"bits; the task tells {record.task_bits[number]:.2f}, the token before "
                    f"{record.previous_bits[number]:.2f}, the token "
                    f"{record.token_bits[number]:.2f}."
                ),
                "history": []
                if history is None
                else np.round(history.load[:, number].T.astype(float), 4).tolist(),
            }
        )
    return {
        "what": (
            f"{len(record.layers)} layers of {record.counts.shape[2]} experts. Percentages: which "
            "share of a token's choices in the layer this expert has."
        ),
        "steps": [] if history is None else history.steps.tolist(),
        "layers": layers,
    }
