"use strict";
// Draws the page from the data beside it. Texts from data reach the page by textContent, or by Plotly with every
// < and & written as entities: Plotly would take them for tags.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  // Okabe and Ito's colours, which the colour-blind tell apart; shapes repeat the message where there are more classes.
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B3A100", "#7F7F7F"];
  const SHAPES = ["circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star"];
  const PARTS = { train: "#7F7F7F", valid: "#E69F00", test: "#0072B2" };
  const UNKNOWN = "#9a9a9a";
  const drawn = [];
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, length = 28) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (kind, attributes = {}, ...children) => {
    const node = Object.assign(document.createElement(kind), attributes);
    node.append(...children);
    return node;
  };
  // On a phone plots stand below each other, and legends below plots, where they cover nothing.
  const narrow = () => innerWidth < 640;
  const two = () => (narrow() ? { height: 720, grid: { rows: 2, columns: 1, pattern: "independent", ygap: 0.3 } } : { height: 380, grid: { rows: 1, columns: 2, pattern: "independent" } });
  const below = { orientation: "h", y: -0.12, yanchor: "top", x: 0 };
  const axis = (title, more = {}) => ({ title: { text: title }, gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true, ...more });
  const frame = (more = {}) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 60, r: 20, t: 30, b: 50 }, hoverlabel: { bgcolor: css("--panel"), font: { color: css("--ink") }, bordercolor: css("--line") },
    legend: narrow() ? below : { orientation: "h", y: 1.12, x: 0 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") }, ...more,
  });
  const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  // Every plot can be drawn again, for when light turns to dark.
  const plot = (id, build) => {
    const place = document.getElementById(id);
    if (!place) return;
    const draw = () => { const [traces, layout] = build(); return Plotly.react(place, traces, frame(layout), config); };
    drawn.push(draw);
    draw();
  };

  function curves() {
    const { metric, seeds } = data.curves;
    if (!seeds.length) return;
    plot("curves", () => {
      const traces = [];
      for (const one of seeds) {
        const first = one === seeds[0];
        traces.push({ x: one.loss.epoch, y: one.loss.value, xaxis: "x", yaxis: "y", mode: "lines", line: { color: "#009E73", width: 1 }, opacity: 0.75, name: "training loss", legendgroup: "loss", showlegend: first, hovertemplate: `seed ${one.seed}, epoch %{x}: loss %{y:.4g}<extra></extra>` });
        for (const [part, colour] of Object.entries(PARTS)) {
          if (one[part].every((v) => v === null)) continue;
          traces.push({ x: one.epoch, y: one[part], xaxis: "x2", yaxis: "y2", mode: "lines", line: { color: colour, width: 1.3, dash: part === "train" ? "dot" : part === "valid" ? "dash" : "solid" }, opacity: 0.75, name: part, legendgroup: part, showlegend: first, hovertemplate: `seed ${one.seed}, epoch %{x}: ${part} %{y:.4f}<extra></extra>` });
        }
        const at = one.epoch.indexOf(one.best);
        if (at >= 0) traces.push({ x: [one.best], y: [one.valid[at]], xaxis: "x2", yaxis: "y2", mode: "markers", marker: { color: PARTS.valid, size: 9, line: { color: css("--ink"), width: 1 } }, name: "kept epoch", legendgroup: "kept", showlegend: first, hovertemplate: `seed ${one.seed}: kept epoch %{x}, valid %{y:.4f}<extra></extra>` });
      }
      return [traces, { ...two(), xaxis: axis("epoch"), yaxis: axis("loss"), xaxis2: axis("epoch"), yaxis2: axis(safe(metric)) }];
    });
  }

  function confusion(found) {
    const names = found.names.map((n) => safe(short(n)));
    const rows = found.confusion;
    const shares = rows.map((row) => { const all = row.reduce((a, b) => a + b, 0); return row.map((v) => (all ? v / all : 0)); });
    const places = names.map((_, i) => i);
    plot("confusion", () => [
      [{ type: "heatmap", x: places, y: places, z: shares, zmin: 0, zmax: 1, colorscale: "Cividis", customdata: rows, text: rows, texttemplate: names.length <= 15 ? "%{text}" : "", hovertemplate: "true %{y}, predicted %{x}: %{customdata} (%{z:.1%})<extra></extra>", colorbar: { title: { text: "share of row" }, tickformat: ".0%" } }],
      { height: Math.max(360, 140 + 26 * names.length), xaxis: axis("predicted", { tickvals: places, ticktext: names, constrain: "domain" }), yaxis: axis("true", { tickvals: places, ticktext: names, autorange: "reversed" }) },
    ]);
  }

  function residuals(found) {
    if (!found.scatter) return;
    const { target, prediction } = found.scatter;
    const low = Math.min(...target), high = Math.max(...target);
    plot("residuals", () => [
      [
        { x: target, y: prediction, mode: "markers", marker: { color: COLOURS[0], size: 5, opacity: 0.6 }, showlegend: false, hovertemplate: "target %{x:.4g}, prediction %{y:.4g}<extra></extra>" },
        { x: [low, high], y: [low, high], mode: "lines", line: { color: css("--soft"), dash: "dash" }, showlegend: false, hoverinfo: "skip" },
        { type: "bar", x: found.histogram.left.map((v) => v + found.histogram.width / 2), y: found.histogram.height, width: found.histogram.width, xaxis: "x2", yaxis: "y2", marker: { color: COLOURS[1] }, showlegend: false, hovertemplate: "error %{x:.4g}: %{y}<extra></extra>" },
      ],
      { ...two(), xaxis: axis("target"), yaxis: axis("prediction"), xaxis2: axis("prediction less target"), yaxis2: axis("how many") },
    ]);
    if (found.over_time) plot("over-time", () => [[{ x: found.over_time.time, y: found.over_time.mse, mode: "lines", line: { color: COLOURS[0] } }], { height: 300, xaxis: axis("snapshot"), yaxis: axis("mean squared error") }]);
  }

  function energy(found) {
    const line = (name, y, more) => ({ x: found.layers, y, name, mode: "lines+markers", ...more });
    plot("energy-plot", () => {
      const traces = [line("energy, all pairs (measured)", found.energy, { line: { color: COLOURS[0] } })];
      if (found.edges) traces.push(line("energy, edges (measured)", found.edges, { line: { color: COLOURS[2] }, marker: { symbol: "square" } }));
      if (found.theorem) traces.push(line("diffusion the theorem covers", found.theorem, { line: { color: COLOURS[3], dash: "dash" }, marker: { symbol: "diamond" } }));
      traces.push(line("effective rank", found.rank, { xaxis: "x2", yaxis: "y2", line: { color: COLOURS[4] }, marker: { symbol: "triangle-up" } }));
      if (found.separation) traces.push(line("between classes", found.separation, { xaxis: "x2", yaxis: "y3", line: { color: COLOURS[1], dash: "dot" }, marker: { symbol: "star" } }));
      const [left, right, upper, lower] = narrow() ? [[0, 1], [0, 1], [0.57, 1], [0, 0.43]] : [[0, 0.44], [0.55, 1], [0, 1], [0, 1]];
      return [traces, { height: narrow() ? 780 : 400, margin: { l: 60, r: 60, t: 60, b: 50 }, xaxis: axis("", { domain: left }), yaxis: axis("mean over pairs", { domain: upper }), xaxis2: axis("", { domain: right, anchor: "y2" }), yaxis2: axis("effective rank", { anchor: "x2", rangemode: "tozero", domain: lower }), yaxis3: axis("share of variance between classes", { overlaying: "y2", side: "right", anchor: "x2", range: [0, 1], tickformat: ".0%", tickmode: "linear", dtick: 0.25, showgrid: false }), legend: narrow() ? below : { orientation: "h", y: 1.2 } }];
    });
  }

  function within(found) {
    plot("within-plot", () => {
      const level = (y, name, colour, dash) => ({ x: found.layers, y: found.layers.map(() => y), name, mode: "lines", line: { color: colour, dash } });
      const traces = [
        { type: "bar", x: found.layers, y: found.share, name: "attention within classes", marker: { color: COLOURS[0] }, hovertemplate: "%{y:.1%}<extra></extra>" },
        level(found.chance, "uniform attention", COLOURS[3], "dash"),
      ];
      if (found.observed !== null) traces.push(level(found.observed, "observed edges", COLOURS[2], "dot"));
      return [traces, { height: 340, xaxis: axis(""), yaxis: axis("share", { tickformat: ".0%", rangemode: "tozero" }) }];
    });
  }

  function explanation(found, number) {
    plot(`explanation-${number}`, () => {
      const colours = [COLOURS[7], COLOURS[0], COLOURS[2], COLOURS[1]], patterns = ["", "/", "x", "."];
      const traces = Object.entries(found.parts).map(([name, y], i) => ({ type: "bar", x: found.layers, y, name, marker: { color: colours[i], pattern: { shape: patterns[i] } }, hovertemplate: `${name}: %{y:.4g}<extra></extra>` }));
      return [traces, { height: 300, barmode: "relative", xaxis: axis(""), yaxis: axis("effect on the score") }];
    });
  }

  // A map: points that a slider moves from layer to layer, pairs above a threshold, observed edges, a card.
  function map(found, number) {
    const place = document.getElementById(`map-${number}`);
    const last = found.layers.length - 1;
    let layer = last, colouring = found.colourings[0], least = 0;
    const layerName = make("output", { id: `layer-name-${number}` });
    const slider = make("input", { type: "range", min: 0, max: last, step: 1, value: last, id: `layer-${number}` });
    slider.setAttribute("aria-label", "layer");
    const choice = make("select", { id: `colour-${number}` }, ...found.colourings.map((c, i) => make("option", { value: i, textContent: c.name })));
    const controls = make("div", { className: "controls" }, make("label", {}, "layer", slider, layerName), make("label", {}, "colour", choice));
    const hasPairs = found.pairs.length > 0;
    const threshold = make("input", { type: "range", min: 0, max: 100, step: 1, value: 40, id: `threshold-${number}` });
    const thresholdName = make("output", { id: `threshold-name-${number}` });
    const showPairs = make("input", { type: "checkbox", checked: !found.uniform.length || found.uniform.some((one) => !one), id: `pairs-${number}` });
    const showEdges = make("input", { type: "checkbox", checked: false, id: `edges-${number}` });
    if (hasPairs) controls.append(make("label", {}, showPairs, "latent pairs above", threshold, thresholdName));
    if (found.observed) controls.append(make("label", {}, showEdges, "observed edges"));
    const canvas = make("div", { className: "canvas", id: `canvas-${number}` });
    const card = make("div", { className: "card", id: `card-${number}` }, "Point at an instance.");
    const counts = make("p", { className: "note", id: `counts-${number}` });
    place.append(controls, make("div", { className: "beside" }, canvas, card), counts);

    const pairsNow = () => (hasPairs && layer > 0 ? found.pairs[layer - 1] : null); // the attention that made this layer
    const strongest = () => { const p = pairsNow(); return p && p.weight.length ? [p.weight[p.weight.length - 1], p.weight[0]] : [0, 0]; };
    const segments = (source, target, keep) => {
      const x = [], y = [];
      for (let i = 0; i < source.length; i++) {
        if (keep && !keep(i)) continue;
        x.push(found.x[layer][source[i]], found.x[layer][target[i]], null);
        y.push(found.y[layer][source[i]], found.y[layer][target[i]], null);
      }
      return { x, y };
    };
    function lines() {
      const p = pairsNow(), on = p && showPairs.checked;
      const above = (i) => p.weight[i] >= least;
      const edges = found.observed && showEdges.checked ? segments(found.observed.source, found.observed.target) : { x: [], y: [] };
      const seen = on ? segments(p.source, p.target, (i) => above(i) && p.observed[i]) : { x: [], y: [] };
      const fresh = on ? segments(p.source, p.target, (i) => above(i) && !p.observed[i]) : { x: [], y: [] };
      const style = (name, xy, colour, width, dash) => ({ ...xy, name, mode: "lines", hoverinfo: "skip", line: { color: colour, width, dash }, opacity: 0.7, showlegend: xy.x.length > 0 });
      return [style("observed edge", edges, css("--soft"), 0.7, "solid"), style("latent pair", fresh, css("--ink"), 1, "solid"), style("latent pair that is an observed edge", seen, "#009E73", 2.4, "solid")];
    }
    function points() {
      const at = (rows, name, marker) => ({ x: rows.map((i) => found.x[layer][i]), y: rows.map((i) => found.y[layer][i]), customdata: rows, name: safe(short(name)), mode: "markers", hoverinfo: "none", marker: { size: 7, line: { width: 0.5, color: css("--back") }, ...marker } });
      const all = found.titles.map((_, i) => i);
      if (colouring.kind === "value") return [at(all, colouring.name, { color: colouring.values, colorscale: "Cividis", showscale: true, colorbar: { title: { text: safe(colouring.name) } } })];
      const traces = [];
      const groups = new Map();
      for (const i of all) { const c = colouring.values[i]; if (!groups.has(c)) groups.set(c, []); groups.get(c).push(i); }
      for (const c of [...groups.keys()].sort((a, b) => a - b)) {
        if (c < 0) traces.push(at(groups.get(c), "unknown", { color: UNKNOWN, symbol: "circle-open" }));
        else if (colouring.kind === "right") traces.push(at(groups.get(c), colouring.names[c], { color: c ? "#D55E00" : "#0072B2", symbol: c ? "x" : "circle", size: c ? 9 : 6 }));
        else traces.push(at(groups.get(c), colouring.names[c], { color: COLOURS[c % 8], symbol: SHAPES[Math.floor(c / 8) % 8] }));
      }
      return traces;
    }
    function count() {
      const p = pairsNow();
      const share = found.explained[layer];
      let text = `The two directions hold ${(100 * share).toFixed(0)} % of the variance of this layer.`;
      if (hasPairs && !p) text += " Latent pairs begin with layer 1.";
      if (p) {
        const above = p.weight.filter((w) => w >= least).length;
        const seen = p.weight.filter((w, i) => w >= least && p.observed[i]).length;
        text += ` ${above} pairs exchange at least ${least.toPrecision(3)} times the uniform attention`;
        if (found.observed) text += `; ${seen} of them are observed edges`;
        if (p.same) {
          const known = p.same.filter((v, i) => p.weight[i] >= least && v >= 0);
          if (known.length) text += `; of ${known.length} with two known labels ${((100 * known.filter((v) => v).length) / known.length).toFixed(0)} % join one class`;
        }
        text += ".";
      }
      counts.textContent = text;
    }
    const hidden = { visible: false, range: [-400, 10400] };
    const draw = () => {
      const [low, high] = strongest();
      least = low + ((high - low) * Number(threshold.value)) / 100;
      layerName.textContent = found.layers[layer];
      thresholdName.textContent = `${least.toPrecision(3)}/n`;
      count();
      return Plotly.react(canvas, [...lines(), ...points()], frame({ height: 560, margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest", xaxis: { ...hidden }, yaxis: { ...hidden, scaleanchor: "x" }, legend: { orientation: "h", y: -0.02, x: 0 }, uirevision: "map" }), config);
    };
    function show(i) {
      card.replaceChildren();
      if (found.sprite) {
        const { side, columns, png } = found.sprite, scale = 128 / side;
        const picture = make("div", { className: "picture" });
        picture.style.backgroundImage = `url(data:image/png;base64,${png})`;
        picture.style.backgroundSize = `${columns * 128}px auto`;
        picture.style.backgroundPosition = `${-(i % columns) * side * scale}px ${-Math.floor(i / columns) * side * scale}px`;
        card.append(picture);
      }
      card.append(make("strong", { textContent: found.titles[i] }));
      if (found.texts.length && found.texts[i]) card.append(make("p", { textContent: found.texts[i] }));
      const list = make("dl");
      for (const c of found.colourings) {
        const v = c.values[i];
        const text = c.kind === "value" ? (v === null ? "unknown" : String(v)) : v < 0 ? "unknown" : c.names[v];
        list.append(make("dt", { textContent: c.name }), make("dd", { textContent: text }));
      }
      card.append(list);
    }
    slider.addEventListener("input", () => { layer = Number(slider.value); draw(); });
    threshold.addEventListener("input", draw);
    showPairs.addEventListener("change", draw);
    showEdges.addEventListener("change", draw);
    choice.addEventListener("change", () => { colouring = found.colourings[Number(choice.value)]; draw(); });
    drawn.push(draw);
    draw().then(() => canvas.on("plotly_hover", (event) => { const i = event.points[0].customdata; if (i !== undefined) show(i); }));
  }

  const again = () => drawn.forEach((draw) => draw());
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  curves();
  if (data.quality.kind === "classes") confusion(data.quality);
  else residuals(data.quality);
  data.maps.forEach(map);
  if (data.within) within(data.within);
  if (data.energy) energy(data.energy);
  data.explanations.forEach(explanation);
  // What was drawn inside a closed fold has no width until it is opened.
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", () => fold.querySelectorAll(".js-plotly-plot").forEach((one) => Plotly.Plots.resize(one))));
  document.documentElement.dataset.ready = "yes";
})();
